// Vectors of floats as the kernels use them: 16 lanes with AVX-512, 8 with AVX2. The operators are the compiler's own.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace tandem {

#ifdef __AVX512F__

constexpr long LANES = 16;
constexpr long TILE_ROWS = 12;  // of a product: 24 sums and 2 weights fill most of the 32 registers
using Vector = __m512;
using Mask = __mmask16;

inline Vector all(float value) { return _mm512_set1_ps(value); }
inline Vector load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector greater(Vector a, Vector b) { return _mm512_max_ps(a, b); }  // b where one of them is NaN
inline float sum(Vector v) { return _mm512_reduce_add_ps(v); }
inline float greatest(Vector v) { return _mm512_reduce_max_ps(v); }

inline Mask first_lanes(long count) {
    return static_cast<Mask>(count >= LANES ? 0xffff : (1u << std::max(count, 0L)) - 1);
}
inline Mask but(Mask a, Mask b) { return static_cast<Mask>(a & ~b); }
inline Vector pick(Mask mask, Vector yes, Vector no) { return _mm512_mask_mov_ps(no, mask, yes); }
inline Vector load(const float* from, Mask mask) { return _mm512_maskz_loadu_ps(mask, from); }
inline void store(float* to, Mask mask, Vector v) { _mm512_mask_storeu_ps(to, mask, v); }

inline Vector widen(const uint16_t* halves) {  // bf16
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline Vector widen_bytes(const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline Vector widen_e4m3(const uint8_t* from) {  // its exponent and mantissa, moved to fp32's, are 2^120 too small
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(byte, _mm512_set1_epi32(0x7f)), 20);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(byte, _mm512_set1_epi32(0x80)), 24);
    return _mm512_castsi512_ps(_mm512_or_si512(sign, magnitude)) * all(0x1p120f);
}
inline void split(const uint32_t* words, Vector& low, Vector& high) {  // two bf16 a word
    const __m512i both = _mm512_loadu_si512(words);
    low = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    high = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff0000)));
}

inline Vector to_whole(Vector v) { return _mm512_roundscale_ps(v, 0); }
inline Vector times_power(Vector v, Vector n) { return _mm512_scalef_ps(v, n); }  // v 2^n

// Sixteen vectors to one: lane j is the sum of vector j.
inline Vector sums_of(const Vector* v) {
    Vector fours[4];
    for (int i = 0; i < 4; ++i) {
        const Vector* at = v + 4 * i;
        const Vector ab = _mm512_unpacklo_ps(at[0], at[1]) + _mm512_unpackhi_ps(at[0], at[1]);
        const Vector cd = _mm512_unpacklo_ps(at[2], at[3]) + _mm512_unpackhi_ps(at[2], at[3]);
        fours[i] = _mm512_shuffle_ps(ab, cd, 0x44) + _mm512_shuffle_ps(ab, cd, 0xee);
    }
    // fours[i]: four quarters, each with a part of the sums 4i to 4i + 3.
    const Vector low =
        _mm512_shuffle_f32x4(fours[0], fours[1], 0x88) + _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd);
    const Vector high =
        _mm512_shuffle_f32x4(fours[2], fours[3], 0x88) + _mm512_shuffle_f32x4(fours[2], fours[3], 0xdd);
    return _mm512_shuffle_f32x4(low, high, 0x88) + _mm512_shuffle_f32x4(low, high, 0xdd);
}

#else

constexpr long LANES = 8;
constexpr long TILE_ROWS = 6;  // 12 sums, 2 weights and a value: 15 of the 16 registers
using Vector = __m256;
using Mask = __m256i;  // all bits of a lane, or none

inline Vector all(float value) { return _mm256_set1_ps(value); }
inline Vector load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Vector v) { _mm256_storeu_ps(to, v); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector greater(Vector a, Vector b) { return _mm256_max_ps(a, b); }  // b where one of them is NaN

inline float sum(Vector v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float greatest(Vector v) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline Mask first_lanes(long count) {
    const int lanes = static_cast<int>(std::clamp(count, 0L, LANES));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Mask but(Mask a, Mask b) { return _mm256_andnot_si256(b, a); }
inline Vector pick(Mask mask, Vector yes, Vector no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask)); }
inline Vector load(const float* from, Mask mask) { return _mm256_maskload_ps(from, mask); }
inline void store(float* to, Mask mask, Vector v) { _mm256_maskstore_ps(to, mask, v); }

inline Vector widen(const uint16_t* halves) {  // bf16
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
inline Vector widen_bytes(const int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline Vector widen_e4m3(const uint8_t* from) {  // its exponent and mantissa, moved to fp32's, are 2^120 too small
    const __m256i byte = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(byte, _mm256_set1_epi32(0x7f)), 20);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(byte, _mm256_set1_epi32(0x80)), 24);
    return _mm256_castsi256_ps(_mm256_or_si256(sign, magnitude)) * all(0x1p120f);
}
inline void split(const uint32_t* words, Vector& low, Vector& high) {  // two bf16 a word
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    low = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    high = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

inline Vector to_whole(Vector v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vector power(__m256i n) {  // 2^n, n from -126 to 127
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// v 2^n, n from -252 to 254, in two factors: one alone would miss what is near zero and near infinity.
inline Vector times_power(Vector v, Vector n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return v * power(half) * power(_mm256_sub_epi32(whole, half));
}

// Eight vectors to one: lane j is the sum of vector j.
inline Vector sums_of(const Vector* v) {
    const Vector first = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    const Vector second = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_permute2f128_ps(first, second, 0x20) + _mm256_permute2f128_ps(first, second, 0x31);
}

#endif

// e^x within 2 units in the last place; NaN stays NaN, what underflows is 0, what overflows is infinite.
inline Vector exponential(Vector x) {
    x = greater(all(-104.0f), x);  // in this order NaN passes
    x = -greater(all(-89.0f), -x);
    const Vector n = to_whole(x * all(1.44269504f));
    Vector r = fma(n, all(-0.693359375f), x);  // ln 2 in two parts
    r = fma(n, all(2.12194440e-4f), r);
    Vector sum = all(1.0f / 720);
    for (const float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = fma(sum, r, all(term));
    return times_power(sum, n);
}

}  // namespace tandem
