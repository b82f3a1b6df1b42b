// One head's key or value of one token, as it lies in a page: bf16, or `head_dim` bytes and their fp32 scale.
#pragma once

#include <cmath>

#include "vector.h"

namespace tandem {

enum Kind { HALF = 0, INT8 = 1, FP8 = 2 };  // CODES in kv_format.py; FP8 is e4m3

inline long row_bytes(int kind, long head_dim) { return kind == HALF ? 2 * head_dim : head_dim + 4; }

template <int K>
inline Vector number(const uint8_t* row, long at) {
    if constexpr (K == HALF) return widen(reinterpret_cast<const uint16_t*>(row) + at);
    if constexpr (K == INT8) return widen_bytes(reinterpret_cast<const int8_t*>(row) + at);
    return widen_e4m3(row + at);
}

template <int K>
inline float scale_of(const uint8_t* row, long head_dim) {
    if constexpr (K == HALF) return 1.0f;
    float scale;
    __builtin_memcpy(&scale, row + head_dim, 4);
    return scale;
}

inline uint16_t half_of(float value) {
    if (std::isnan(value)) return 0x7fc0;
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

// Not for NaN: a row with one has a scale that is NaN. |value| is at most 448, but for its last bit.
inline uint8_t e4m3_of(float value) {
    const float small = value * 0x1p-120f;
    uint32_t bits;
    __builtin_memcpy(&bits, &small, 4);
    const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    return static_cast<uint8_t>(sign | std::min<uint32_t>((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20, 0x7e));
}

inline void write_row(int kind, const float* head, long head_dim, uint8_t* row) {
    if (kind == HALF) {
        for (long d = 0; d < head_dim; ++d) reinterpret_cast<uint16_t*>(row)[d] = half_of(head[d]);
        return;
    }
    float most = 0.0f;
    for (long d = 0; d < head_dim; ++d) most = std::isnan(head[d]) ? head[d] : std::max(most, std::fabs(head[d]));
    const float scale = std::isnan(most) ? most : std::max(most / (kind == INT8 ? 127.0f : 448.0f), 0x1p-126f);
    const float safe = std::isfinite(scale) ? scale : 1.0f;
    for (long d = 0; d < head_dim; ++d) {
        const float part = std::isfinite(scale) ? head[d] / safe : 0.0f;
        row[d] = kind == INT8 ? static_cast<uint8_t>(static_cast<int8_t>(std::lrint(part))) : e4m3_of(part);
    }
    const float kept = std::isfinite(scale) ? scale : NAN;
    __builtin_memcpy(row + head_dim, &kept, 4);
}

}  // namespace tandem
