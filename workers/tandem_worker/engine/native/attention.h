// Rotary embedding, the KV pages (bf16), and attention over them in fp32.
#pragma once

#include <cmath>

#include "product.h"

namespace tandem {

constexpr long KEYS_AT_ONCE = 256;   // of a block of a prompt's attention
constexpr long QUERIES_AT_ONCE = 48;
constexpr float NOTHING = -INFINITY;

inline __m512 wide16(const uint16_t* half) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

inline uint16_t half_of(float value) {
    if (std::isnan(value)) return 0x7fc0;
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

inline void rms_norm(const float* x, const float* weight, long size, float epsilon, float* to) {
    __m512 squares = _mm512_setzero_ps();
    for (long at = 0; at < size; at += LANES) {
        const __m512 value = _mm512_maskz_loadu_ps(first_lanes(size - at), x + at);
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / size + epsilon));
    for (long at = 0; at < size; at += LANES) {
        const __mmask16 lanes = first_lanes(size - at);
        const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + at), scale);
        _mm512_mask_storeu_ps(to + at, lanes, _mm512_mul_ps(value, _mm512_maskz_loadu_ps(lanes, weight + at)));
    }
}

// The fields and their order are those of `AttentionCall` in native/library.py.
struct Attention {
    float* qkv;          // [rows, heads + 2 kv_heads, head_dim]; queries and keys are turned in place
    float* out;          // [rows, heads, head_dim]
    uint16_t* kv;        // one layer's [2, page_tokens, kv_heads, head_dim] of page 0
    const float* cosines;  // [context, head_dim]
    const float* sines;
    const float* query_norm;  // [head_dim] or null
    const float* key_norm;
    const int64_t* positions;  // [rows]
    const int64_t* page;       // [rows]
    const int64_t* slot;       // [rows]
    long rows, heads, kv_heads, head_dim, page_tokens, page_stride;
    long window;  // keys in sight; 0: all
    float epsilon;
    int threads;

    long row_size() const { return (heads + 2 * kv_heads) * head_dim; }
    long side() const { return page_tokens * kv_heads * head_dim; }  // from a page's keys to its values
    long first_seen(long position) const { return window ? std::max(0L, position + 1 - window) : 0; }
    const uint16_t* key(const int64_t* pages, long at, long kv_head) const {
        return kv + pages[at / page_tokens] * page_stride + (at % page_tokens * kv_heads + kv_head) * head_dim;
    }

    void turn(float* head, const float* norm, long position, float scale) const {
        const long half = head_dim / 2;
        const float *cosine = cosines + position * head_dim, *sine = sines + position * head_dim;
        if (norm != nullptr) rms_norm(head, norm, head_dim, epsilon, head);
        for (long d = 0; d < half; ++d) {
            const float first = head[d], second = head[d + half];
            head[d] = scale * (first * cosine[d] - second * sine[d]);
            head[d + half] = scale * (second * cosine[d + half] + first * sine[d + half]);
        }
    }

    // Turn a row's queries (scaled for the softmax) and keys, and put its keys and values into their page.
    void enter(long row) const {
        float* heads_of = qkv + row * row_size();
        const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        for (long h = 0; h < heads; ++h) turn(heads_of + h * head_dim, query_norm, positions[row], scale);
        uint16_t* to = kv + page[row] * page_stride + slot[row] * kv_heads * head_dim;
        float* keys = heads_of + heads * head_dim;
        for (long g = 0; g < kv_heads; ++g) turn(keys + g * head_dim, key_norm, positions[row], 1.0f);
        const long count = kv_heads * head_dim;
        for (long at = 0; at < count; ++at) to[at] = half_of(keys[at]);
        for (long at = 0; at < count; ++at) to[side() + at] = half_of(keys[count + at]);
    }
};

// Sixteen vectors to one: lane j is the sum of vector j.
inline __m512 sums_of(const __m512* v) {
    __m512 fours[4];
    for (int i = 0; i < 4; ++i) {
        const __m512 *at = v + 4 * i;
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(at[0], at[1]), _mm512_unpackhi_ps(at[0], at[1]));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(at[2], at[3]), _mm512_unpackhi_ps(at[2], at[3]));
        fours[i] = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    }
    // fours[i]: four quarters, each with a part of the sums 4i to 4i + 3.
    const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88),
                                     _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd));
    const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2], fours[3], 0x88),
                                      _mm512_shuffle_f32x4(fours[2], fours[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

// One row's attention, `R` heads that share a KV head. V: vectors a head. scores: [R][room], room a multiple of 16.
template <int V, int R>
void attend_row(const Attention& call, const int64_t* pages, long row, long head, long kv_head, float* scores, long room) {
    const long last = call.positions[row], first = call.first_seen(last) / LANES * LANES, end = last + 1;
    const float* queries = call.qkv + row * call.row_size() + head * call.head_dim;
    for (long at = first; at < end; at += LANES) {
        __m512 parts[R][LANES];
        for (long j = 0; j < LANES; ++j) {
            const uint16_t* key = call.key(pages, std::min(at + j, last), kv_head);
            __m512 wide[V];
            for (int v = 0; v < V; ++v) wide[v] = wide16(key + v * LANES);
            for (int r = 0; r < R; ++r) {
                __m512 sum = _mm512_mul_ps(wide[0], _mm512_loadu_ps(queries + r * call.head_dim));
                for (int v = 1; v < V; ++v) {
                    sum = _mm512_fmadd_ps(wide[v], _mm512_loadu_ps(queries + r * call.head_dim + v * LANES), sum);
                }
                parts[r][j] = sum;
            }
        }
        const __mmask16 seen = first_lanes(end - at) & ~first_lanes(call.first_seen(last) - at);
        for (int r = 0; r < R; ++r) {
            _mm512_storeu_ps(scores + r * room + at, _mm512_mask_mov_ps(_mm512_set1_ps(NOTHING), seen, sums_of(parts[r])));
        }
    }
    __m512 sums[R][V];
    float totals[R];
    for (int r = 0; r < R; ++r) {
        __m512 most = _mm512_set1_ps(NOTHING), total = _mm512_setzero_ps();
        for (long at = first; at < end; at += LANES) most = _mm512_max_ps(most, _mm512_loadu_ps(scores + r * room + at));
        most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
        for (long at = first; at < end; at += LANES) {
            const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + r * room + at), most));
            total = _mm512_add_ps(total, weight);
            _mm512_storeu_ps(scores + r * room + at, weight);
        }
        totals[r] = _mm512_reduce_add_ps(total);
        for (int v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
    }
    for (long at = first; at < end; ++at) {
        const uint16_t* value = call.key(pages, at, kv_head) + call.side();
        for (int v = 0; v < V; ++v) {
            const __m512 wide = wide16(value + v * LANES);
            for (int r = 0; r < R; ++r) {
                sums[r][v] = _mm512_fmadd_ps(wide, _mm512_set1_ps(scores[r * room + at]), sums[r][v]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        float* to = call.out + (row * call.heads + head + r) * call.head_dim;
        for (int v = 0; v < V; ++v) _mm512_storeu_ps(to + v * LANES, _mm512_div_ps(sums[r][v], _mm512_set1_ps(totals[r])));
    }
}

template <int V>
void attend_heads(const Attention& call, const int64_t* pages, long row, long kv_head, std::vector<float>& scores) {
    const long group = call.heads / call.kv_heads;
    const long room = (call.positions[row] / LANES + 1) * LANES;
    scores.resize(4 * room);
    for (long at = 0; at < group; at += 4) {
        const long head = kv_head * group + at;
        switch (std::min(4L, group - at)) {
            case 1: attend_row<V, 1>(call, pages, row, head, kv_head, scores.data(), room); break;
            case 2: attend_row<V, 2>(call, pages, row, head, kv_head, scores.data(), room); break;
            case 3: attend_row<V, 3>(call, pages, row, head, kv_head, scores.data(), room); break;
            default: attend_row<V, 4>(call, pages, row, head, kv_head, scores.data(), room); break;
        }
    }
}

inline void attend_heads(const Attention& call, const int64_t* pages, long row, long kv_head, std::vector<float>& scores) {
    switch (call.head_dim / LANES) {
        case 1: attend_heads<1>(call, pages, row, kv_head, scores); break;
        case 2: attend_heads<2>(call, pages, row, kv_head, scores); break;
        case 4: attend_heads<4>(call, pages, row, kv_head, scores); break;
        case 5: attend_heads<5>(call, pages, row, kv_head, scores); break;
        case 6: attend_heads<6>(call, pages, row, kv_head, scores); break;
        default: attend_heads<8>(call, pages, row, kv_head, scores); break;
    }
}

}  // namespace tandem
