// x [rows, in] fp32 times a bf16 weight laid out in panels of 32 outputs (16 with AVX2); sums in fp32.
//
// Every output is one chain of fused multiply-adds over the inputs in their order, whatever the number of rows: a row's
// result does not depend on the batch that it is in, down to the last bit.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "vector.h"

namespace tandem {

constexpr long PANEL = 2 * LANES;
constexpr long DEPTH = 256;         // inputs at once: a panel's fp32 copy (32 KiB) stays in the first-level cache
constexpr long BLOCK_ROWS = 240;    // of x at once: 240 x 256 values stay in the second-level cache
constexpr long BLOCK_PANELS = 4;
constexpr long AHEAD = 1024;        // words fetched before they are needed: the next panels lie behind this one
constexpr long DIRECT_ROWS = 48;    // below, widening a weight each time costs less than keeping its fp32 copy

// A panel as it is stored: one 32-bit word for outputs n (low half) and n + LANES (high half) of an input.
struct HalfPanel {
    const uint32_t* words;
    inline void load_at(long k, Vector& low, Vector& high) const {
        _mm_prefetch(words + k * LANES + AHEAD, _MM_HINT_T0);
        split(words + k * LANES, low, high);
    }
};

struct WidePanel {
    const float* values;  // [inputs][PANEL]
    inline void load_at(long k, Vector& low, Vector& high) const {
        low = load(values + k * PANEL);
        high = load(values + k * PANEL + LANES);
    }
};

// c [M, PANEL] += a [M, depth] times a panel.
template <int M, typename Panel>
inline void tile(const float* a, long a_stride, Panel panel, long depth, float* c, long c_stride) {
    Vector sums[M][2];
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
        sums[m][0] = load(c + m * c_stride);
        sums[m][1] = load(c + m * c_stride + LANES);
    }
    for (long k = 0; k < depth; ++k) {
        Vector low, high;
        panel.load_at(k, low, high);
#pragma GCC unroll 12
        for (int m = 0; m < M; ++m) {
            const Vector value = all(a[m * a_stride + k]);
            sums[m][0] = fma(value, low, sums[m][0]);
            sums[m][1] = fma(value, high, sums[m][1]);
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
        store(c + m * c_stride, sums[m][0]);
        store(c + m * c_stride + LANES, sums[m][1]);
    }
}

// c [M, P * PANEL] += a [M, depth] times P panels that lie `apart` words from each other. One panel gives few rows too few
// chains of sums: each waits for its last sum, and not for memory.
template <int M, int P>
inline void strip(const float* a, long a_stride, const uint32_t* words, long apart, long depth, float* c, long c_stride) {
    Vector sums[M][2 * P];
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 12
        for (int p = 0; p < 2 * P; ++p) sums[m][p] = load(c + m * c_stride + p * LANES);
    }
    for (long k = 0; k < depth; ++k) {
        Vector values[M];
#pragma GCC unroll 12
        for (int m = 0; m < M; ++m) values[m] = all(a[m * a_stride + k]);
        const uint32_t* at = words + k * LANES;
        const long ahead = AHEAD + (k * LANES + AHEAD < apart ? 0 : (P - 1) * apart);  // behind these panels lie the next P
#pragma GCC unroll 12
        for (int p = 0; p < P; ++p) {
            Vector low, high;
            _mm_prefetch(at + p * apart + ahead, _MM_HINT_T0);
            split(at + p * apart, low, high);
#pragma GCC unroll 12
            for (int m = 0; m < M; ++m) {
                sums[m][2 * p] = fma(values[m], low, sums[m][2 * p]);
                sums[m][2 * p + 1] = fma(values[m], high, sums[m][2 * p + 1]);
            }
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 12
        for (int p = 0; p < 2 * P; ++p) store(c + m * c_stride + p * LANES, sums[m][p]);
    }
}

// The same for any number of rows. Tiles of equal height: 32 rows are 11 + 11 + 10, not 12 + 12 + 8.
template <typename Panel>
inline void tiles(const float* a, long a_stride, long rows, Panel panel, long depth, float* c, long c_stride) {
    long left = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (long at = 0; at < rows; --left) {
        const long height = (rows - at + left - 1) / left;
        const float* from = a + at * a_stride;
        float* to = c + at * c_stride;
        switch (height) {
            case 1: tile<1>(from, a_stride, panel, depth, to, c_stride); break;
            case 2: tile<2>(from, a_stride, panel, depth, to, c_stride); break;
            case 3: tile<3>(from, a_stride, panel, depth, to, c_stride); break;
            case 4: tile<4>(from, a_stride, panel, depth, to, c_stride); break;
            case 5: tile<5>(from, a_stride, panel, depth, to, c_stride); break;
            case 6: tile<6>(from, a_stride, panel, depth, to, c_stride); break;
            case 7: tile<7>(from, a_stride, panel, depth, to, c_stride); break;
            case 8: tile<8>(from, a_stride, panel, depth, to, c_stride); break;
            case 9: tile<9>(from, a_stride, panel, depth, to, c_stride); break;
            case 10: tile<10>(from, a_stride, panel, depth, to, c_stride); break;
            case 11: tile<11>(from, a_stride, panel, depth, to, c_stride); break;
            default: tile<12>(from, a_stride, panel, depth, to, c_stride); break;
        }
        at += height;
    }
}

inline void widen_panel(HalfPanel panel, long first, long depth, float* to) {
    for (long k = 0; k < depth; ++k) {
        Vector low, high;
        panel.load_at(first + k, low, high);
        store(to + k * PANEL, low);
        store(to + k * PANEL + LANES, high);
    }
}

enum Ending { STORE = 0, ADD = 1, GATE = 2 };

struct Product {
    const float* x;
    long rows, inputs;
    const uint32_t* weight;  // [panels][inputs][LANES] words
    const float* bias;       // [outputs] or null
    float* out;              // [rows, outputs]
    long outputs;            // GATE: half of the weight's outputs; words hold a gate (low) and its value (high)
    int ending;

    long panels() const { return ending == GATE ? (outputs + LANES - 1) / LANES : (outputs + PANEL - 1) / PANEL; }

    // One block of the result: rows from `row`, panels from `panel`.
    void block(long row, long height, long panel, long width, std::vector<float>& sums, float* wide) const {
        const long stride = width * PANEL;
        sums.assign(height * stride, 0.0f);
        const bool direct = height <= DIRECT_ROWS;
        const long step = direct ? inputs : DEPTH;
        for (long first = 0; first < inputs; first += step) {
            const long depth = std::min(step, inputs - first);
            for (long at = few(row, height, panel, width, sums.data()); at < width; ++at) {
                const HalfPanel half{weight + (panel + at) * inputs * LANES};
                const float* a = x + row * inputs + first;
                float* c = sums.data() + at * PANEL;
                if (direct) {
                    tiles(a, inputs, height, half, depth, c, stride);
                } else {
                    widen_panel(half, first, depth, wide);
                    tiles(a, inputs, height, WidePanel{wide}, depth, c, stride);
                }
            }
        }
        for (long m = 0; m < height; ++m) {
            for (long at = 0; at < width; ++at) {
                end(out + (row + m) * outputs, panel + at, sums.data() + m * stride + at * PANEL);
            }
        }
    }

    // Of one row or two: as many panels of the block as go together. How many that were.
    long few(long row, long height, long panel, long width, float* sums) const {
        const long apart = inputs * LANES, stride = width * PANEL;
        const float* a = x + row * inputs;
        long at = 0;
        for (; height == 1 && at + 4 <= width; at += 4) {
            strip<1, 4>(a, inputs, weight + (panel + at) * apart, apart, inputs, sums + at * PANEL, stride);
        }
        for (; height <= 2 && at + 2 <= width; at += 2) {
            const uint32_t* words = weight + (panel + at) * apart;
            if (height == 1) strip<1, 2>(a, inputs, words, apart, inputs, sums + at * PANEL, stride);
            else strip<2, 2>(a, inputs, words, apart, inputs, sums + at * PANEL, stride);
        }
        return at;
    }

    void end(float* to, long panel, const float* sums) const {
        Vector low = load(sums), high = load(sums + LANES);
        if (ending == GATE) {
            const Vector gated = low / (all(1.0f) + exponential(-low)) * high;  // SiLU of the gate, times its value
            store(to + panel * LANES, first_lanes(outputs - panel * LANES), gated);
            return;
        }
        finish(to, panel * PANEL, low);
        finish(to, panel * PANEL + LANES, high);
    }

    void finish(float* to, long at, Vector value) const {
        const Mask lanes = first_lanes(outputs - at);
        if (bias != nullptr) value = value + load(bias + at, lanes);
        if (ending == ADD) value = value + load(to + at, lanes);
        store(to + at, lanes, value);
    }

    void run(int threads) const {
        if (rows == 0) return;
        const long height = std::min(rows, BLOCK_ROWS);
        const long down = (rows + height - 1) / height, across = (panels() + BLOCK_PANELS - 1) / BLOCK_PANELS;
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
            std::vector<float> sums;
            alignas(64) float wide[DEPTH * PANEL];
#pragma omp for schedule(dynamic, 1) nowait
            for (long task = 0; task < down * across; ++task) {
                const long row = task / across * height, panel = task % across * BLOCK_PANELS;
                block(row, std::min(height, rows - row), panel, std::min(BLOCK_PANELS, panels() - panel), sums, wide);
            }
        }
    }
};

// Large pages where the system has them on request: a step reads every weight once, and each page costs it a look-up.
inline void ask_for_large_pages(void* from, long bytes) {
    constexpr uintptr_t LARGE = 2 << 20;
    const uintptr_t start = (reinterpret_cast<uintptr_t>(from) + LARGE - 1) / LARGE * LARGE;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + bytes) / LARGE * LARGE;
    if (end > start) madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);  // no is an answer, too
}

// weight [outputs, inputs] bf16, row by row → panels. `gated`: its upper half are gates, its lower half their values.
inline void pack(const uint16_t* weight, long outputs, long inputs, bool gated, uint32_t* panels) {
    const long apart = gated ? outputs / 2 : LANES, step = gated ? LANES : PANEL, rows = gated ? outputs / 2 : outputs;
    ask_for_large_pages(panels, (rows + step - 1) / step * inputs * LANES * 4);
    for (long first = 0; first < rows; first += step) {
        for (long lane = 0; lane < LANES; ++lane) {
            const long low = first + lane, high = low + apart;
            const bool has_low = low < rows, has_high = gated ? has_low : high < outputs;
            for (long k = 0; k < inputs; ++k) {
                const uint32_t bottom = has_low ? weight[low * inputs + k] : 0;
                const uint32_t top = has_high ? weight[high * inputs + k] : 0;
                panels[(first / step * inputs + k) * LANES + lane] = top << 16 | bottom;
            }
        }
    }
}

}  // namespace tandem
