// x [rows, in] fp32 times a bf16 weight laid out in panels of 32 outputs; sums in fp32.
//
// Every output is one chain of fused multiply-adds over the inputs in their order, whatever the number of rows: a row's
// result does not depend on the batch that it is in, down to the last bit.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tandem {

constexpr long LANES = 16;
constexpr long PANEL = 2 * LANES;
constexpr long TILE_ROWS = 12;      // 24 sums and 2 weights fill most of the 32 registers
constexpr long DEPTH = 256;         // inputs at once: a panel's fp32 copy (32 KiB) stays in the first-level cache
constexpr long BLOCK_ROWS = 240;    // of x at once: 240 x 256 values stay in the second-level cache
constexpr long BLOCK_PANELS = 4;
constexpr long DIRECT_ROWS = 48;    // below, widening a weight each time costs less than keeping its fp32 copy

// A panel as it is stored: one 32-bit word for outputs n (low half) and n + 16 (high half) of an input.
struct HalfPanel {
    const uint32_t* words;
    inline void load(long k, __m512& low, __m512& high) const {
        const __m512i both = _mm512_loadu_si512(words + k * LANES);
        low = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        high = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff0000)));
    }
};

struct WidePanel {
    const float* values;  // [inputs][32]
    inline void load(long k, __m512& low, __m512& high) const {
        low = _mm512_loadu_ps(values + k * PANEL);
        high = _mm512_loadu_ps(values + k * PANEL + LANES);
    }
};

// c [M, 32] += a [M, depth] times a panel.
template <int M, typename Panel>
inline void tile(const float* a, long a_stride, Panel panel, long depth, float* c, long c_stride) {
    __m512 sums[M][2];
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
        sums[m][0] = _mm512_loadu_ps(c + m * c_stride);
        sums[m][1] = _mm512_loadu_ps(c + m * c_stride + LANES);
    }
    for (long k = 0; k < depth; ++k) {
        __m512 low, high;
        panel.load(k, low, high);
#pragma GCC unroll 12
        for (int m = 0; m < M; ++m) {
            const __m512 value = _mm512_set1_ps(a[m * a_stride + k]);
            sums[m][0] = _mm512_fmadd_ps(value, low, sums[m][0]);
            sums[m][1] = _mm512_fmadd_ps(value, high, sums[m][1]);
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
        _mm512_storeu_ps(c + m * c_stride, sums[m][0]);
        _mm512_storeu_ps(c + m * c_stride + LANES, sums[m][1]);
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

inline void widen(HalfPanel panel, long first, long depth, float* to) {
    for (long k = 0; k < depth; ++k) {
        __m512 low, high;
        panel.load(first + k, low, high);
        _mm512_storeu_ps(to + k * PANEL, low);
        _mm512_storeu_ps(to + k * PANEL + LANES, high);
    }
}

// e^x within 2 units in the last place; NaN stays NaN, and what underflows is 0.
inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // in this order NaN passes
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);  // ln 2 in two parts
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 sum = _mm512_set1_ps(1.0f / 720);
    for (const float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
        sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(term));
    }
    return _mm512_scalef_ps(sum, n);
}

inline __mmask16 first_lanes(long count) {
    return static_cast<__mmask16>(count >= LANES ? 0xffff : (1u << std::max(count, 0L)) - 1);
}

enum Ending { STORE = 0, ADD = 1, GATE = 2 };

struct Product {
    const float* x;
    long rows, inputs;
    const uint32_t* weight;  // [panels][inputs][16] words
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
            for (long at = 0; at < width; ++at) {
                const HalfPanel half{weight + (panel + at) * inputs * LANES};
                const float* a = x + row * inputs + first;
                float* c = sums.data() + at * PANEL;
                if (direct) {
                    tiles(a, inputs, height, half, depth, c, stride);
                } else {
                    widen(half, first, depth, wide);
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

    void end(float* to, long panel, const float* sums) const {
        __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + LANES);
        if (ending == GATE) {
            const __m512 one = _mm512_set1_ps(1.0f);
            const __m512 spread = _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), low)));
            const __m512 gated = _mm512_mul_ps(_mm512_div_ps(low, spread), high);  // SiLU of the gate, times its value
            _mm512_mask_storeu_ps(to + panel * LANES, first_lanes(outputs - panel * LANES), gated);
            return;
        }
        finish(to, panel * PANEL, low);
        finish(to, panel * PANEL + LANES, high);
    }

    void finish(float* to, long at, __m512 value) const {
        const __mmask16 lanes = first_lanes(outputs - at);
        if (bias != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, bias + at));
        if (ending == ADD) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, to + at));
        _mm512_mask_storeu_ps(to + at, lanes, value);
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

// weight [outputs, inputs] bf16, row by row → panels. `gated`: its upper half are gates, its lower half their values.
inline void pack(const uint16_t* weight, long outputs, long inputs, bool gated, uint32_t* panels) {
    const long apart = gated ? outputs / 2 : LANES, step = gated ? LANES : PANEL, rows = gated ? outputs / 2 : outputs;
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
