// What the engine calls, in C's conventions: pointers and sizes, no torch. Compiled once (see build.py), per instruction set.
#include "copy.h"
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

void attend_group(const Attention* call, const int64_t* pages, long width, long sequences, long rows, long first) {
    switch (call->kind) {
        case tandem::INT8: attend<tandem::INT8>(call, pages, width, sequences, rows, first); break;
        case tandem::FP8: attend<tandem::FP8>(call, pages, width, sequences, rows, first); break;
        default: attend<tandem::HALF>(call, pages, width, sequences, rows, first); break;
    }
}

// The fields of these three and their order are those of their namesakes in native/library.py.
struct Layer {
    const float *attention_norm, *mlp_norm, *query_norm, *key_norm;  // the last two or null
    const uint32_t *qkv, *output, *gated, *down;
    const float *qkv_bias, *output_bias;  // or null
    long window;
};

struct Group {
    const int64_t* pages;  // [sequences, width]
    long width, sequences, rows, first;
};

struct Pass {
    Attention call;
    const Layer* layers;
    const Group* groups;
    float *hidden, *normed, *inner;  // [rows, size] twice, [rows, inner_size]; the first is changed
    long layer_count, group_count, size, inner_size, layer_bytes;

    void norm(const float* weight) const {
#pragma omp parallel for schedule(static) num_threads(call.threads) if (call.threads > 1 && call.rows >= 16)
        for (long row = 0; row < call.rows; ++row) {
            tandem::rms_norm(hidden + row * size, weight, size, call.epsilon, normed + row * size);
        }
    }

    void product(const float* x, long inputs, const uint32_t* weight, const float* bias, float* out, long outputs,
                 int ending) const {
        tandem::Product{x, call.rows, inputs, weight, bias, out, outputs, ending}.run(call.threads);
    }

    void attend_layer() const {
#pragma omp parallel for schedule(static) num_threads(call.threads) if (call.threads > 1 && call.rows >= 16)
        for (long row = 0; row < call.rows; ++row) call.enter(row);
        for (long at = 0; at < group_count; ++at) {
            const Group& one = groups[at];
            attend_group(&call, one.pages, one.width, one.sequences, one.rows, one.first);
        }
    }

    void run() {
        const long heads = call.heads * call.head_dim;
        for (long at = 0; at < layer_count; ++at) {
            const Layer& layer = layers[at];
            call.query_norm = layer.query_norm;
            call.key_norm = layer.key_norm;
            call.window = layer.window;
            norm(layer.attention_norm);
            product(normed, size, layer.qkv, layer.qkv_bias, call.qkv, call.row_size(), tandem::STORE);
            attend_layer();
            product(call.out, heads, layer.output, layer.output_bias, hidden, size, tandem::ADD);
            norm(layer.mlp_norm);
            product(normed, size, layer.gated, nullptr, inner, inner_size, tandem::GATE);
            product(inner, inner_size, layer.down, nullptr, hidden, size, tandem::ADD);
            call.kv += layer_bytes;
        }
    }
};

extern "C" {

// The form of these calls and of packed weights; library.py asks for it before it uses anything else.
int tandem_form() { return 5; }

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
    attend_group(call, pages, width, sequences, rows, first);
}

// All layers, one after the other; their keys and values lie `layer_bytes` from each other.
void tandem_run_pass(Pass* pass) { pass->run(); }

void tandem_copy(void* to, const void* from, long size) {
    tandem::copy_past_caches(static_cast<char*>(to), static_cast<const char*>(from), size);
}
}
