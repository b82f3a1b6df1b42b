// Copying more than the caches hold: the stores pass them by. A plain copy first reads each line that it is going to
// overwrite, which is a third of all that it moves.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tandem {

constexpr long COPIED = 256, FETCHED = 1024;  // bytes of one round of the loop, and how far ahead it fetches
constexpr long CACHE_LINE = 64, WORD = sizeof(__m256i);

inline void copy_block(char* to, const char* from) {
    __m256i words[COPIED / WORD];
    for (long at = 0; at < COPIED; at += CACHE_LINE) _mm_prefetch(from + at + FETCHED, _MM_HINT_NTA);
    for (long i = 0; i < COPIED / WORD; ++i) words[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
    for (long i = 0; i < COPIED / WORD; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, words[i]);
}

// The two do not overlap.
inline void copy_past_caches(char* to, const char* from, long size) {
    const long head = std::min<long>(size, -reinterpret_cast<uintptr_t>(to) % WORD);  // streams go to whole words alone
    std::memcpy(to, from, head);
    long done = head;
    for (; done + COPIED <= size; done += COPIED) copy_block(to + done, from + done);
    std::memcpy(to + done, from + done, size - done);
    _mm_sfence();  // whoever hears of the end sees all of it
}

}  // namespace tandem
