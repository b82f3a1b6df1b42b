// What the engine calls, in C's conventions: pointers and sizes, no torch. Compiled once (see build.py), per instruction set.
#include "prompt.h"

using tandem::Attention;

template <int K>
void attend(const Attention* call, const int64_t* pages, long width, long sequences, long rows, long first) {
    static thread_local std::vector<float> keys, values;
    if (rows >= 4) {
        for (long at = 0; at < sequences; ++at) {
            tandem::Prompt{*call, pages + at * width, first + at * rows, rows, keys, values}.run<K>();
        }
        return;
    }
    const long tasks = sequences * rows * call->kv_heads;
#pragma omp parallel num_threads(call->threads) if (call->threads > 1)
    {
        std::vector<float> scores;
#pragma omp for schedule(dynamic, 1) nowait
        for (long task = 0; task < tasks; ++task) {
            const long at = task / call->kv_heads;
            tandem::attend_heads<K>(*call, pages + at / rows * width, first + at, task % call->kv_heads, scores);
        }
    }
}

extern "C" {

// The form of these calls and of packed weights; library.py asks for it before it uses anything else.
int tandem_form() { return 3; }

// Outputs in a word's half of a panel: packed weights are [panels][inputs][lanes] words.
int tandem_lanes() { return tandem::LANES; }

void tandem_pack(const uint16_t* weight, long outputs, long inputs, int gated, uint32_t* panels) {
    tandem::pack(weight, outputs, inputs, gated != 0, panels);
}

void tandem_product(const float* x, long rows, long inputs, const uint32_t* weight, const float* bias, float* out,
                    long outputs, int ending, int threads) {
    tandem::Product{x, rows, inputs, weight, bias, out, outputs, ending}.run(threads);
}

void tandem_norm(const float* x, const float* weight, long rows, long size, float epsilon, float* to) {
    for (long row = 0; row < rows; ++row) tandem::rms_norm(x + row * size, weight, size, epsilon, to + row * size);
}

void tandem_enter(const Attention* call) {
#pragma omp parallel for schedule(static) num_threads(call->threads) if (call->threads > 1 && call->rows >= 16)
    for (long row = 0; row < call->rows; ++row) call->enter(row);
}

// `sequences` of `rows` new tokens each, from row `first` on; pages: [sequences, width].
void tandem_attend(const Attention* call, const int64_t* pages, long width, long sequences, long rows, long first) {
    switch (call->kind) {
        case tandem::INT8: attend<tandem::INT8>(call, pages, width, sequences, rows, first); break;
        case tandem::FP8: attend<tandem::FP8>(call, pages, width, sequences, rows, first); break;
        default: attend<tandem::HALF>(call, pages, width, sequences, rows, first); break;
    }
}
}
