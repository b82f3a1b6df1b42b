// Rotary embedding, the KV pages (see rows.h), and attention over them in fp32.
#pragma once

#include "product.h"
#include "rows.h"

namespace tandem {

constexpr long KEYS_AT_ONCE = 256;   // of a block of a prompt's attention
constexpr long QUERIES_AT_ONCE = 48;
constexpr float NOTHING = -INFINITY;

inline void rms_norm(const float* x, const float* weight, long size, float epsilon, float* to) {
    Vector squares = all(0.0f);
    for (long at = 0; at < size; at += LANES) {
        const Vector value = load(x + at, first_lanes(size - at));
        squares = fma(value, value, squares);
    }
    const Vector scale = all(1.0f / std::sqrt(sum(squares) / size + epsilon));
    for (long at = 0; at < size; at += LANES) {
        const Mask lanes = first_lanes(size - at);
        const Vector value = load(x + at, lanes) * scale;
        store(to + at, lanes, value * load(weight + at, lanes));
    }
}

// The fields and their order are those of `AttentionCall` in native/library.py.
struct Attention {
    float* qkv;          // [rows, heads + 2 kv_heads, head_dim]; queries and keys are turned in place
    float* out;          // [rows, heads, head_dim]
    uint8_t* kv;         // one layer's [2, page_tokens, kv_heads, row] of page 0
    const float* cosines;  // [context, head_dim]
    const float* sines;
    const float* query_norm;  // [head_dim] or null
    const float* key_norm;
    const int64_t* positions;  // [rows]
    const int64_t* page;       // [rows]
    const int64_t* slot;       // [rows]
    long rows, heads, kv_heads, head_dim, page_tokens, page_stride;  // the last in bytes
    long window;  // keys in sight; 0: all
    float epsilon;
    int threads, kind;  // kind: see rows.h

    long row_size() const { return (heads + 2 * kv_heads) * head_dim; }
    long row() const { return row_bytes(kind, head_dim); }
    long side() const { return page_tokens * kv_heads * row(); }  // bytes from a page's keys to its values
    long first_seen(long position) const { return window ? std::max(0L, position + 1 - window) : 0; }
    const uint8_t* key(const int64_t* pages, long at, long kv_head) const {
        return kv + pages[at / page_tokens] * page_stride + (at % page_tokens * kv_heads + kv_head) * row();
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
    void enter(long at) const {
        float* heads_of = qkv + at * row_size();
        const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        for (long h = 0; h < heads; ++h) turn(heads_of + h * head_dim, query_norm, positions[at], scale);
        uint8_t* to = kv + page[at] * page_stride + slot[at] * kv_heads * row();
        float* keys = heads_of + heads * head_dim;
        for (long g = 0; g < kv_heads; ++g) turn(keys + g * head_dim, key_norm, positions[at], 1.0f);
        for (long g = 0; g < kv_heads; ++g) {
            write_row(kind, keys + g * head_dim, head_dim, to + g * row());
            write_row(kind, keys + (kv_heads + g) * head_dim, head_dim, to + side() + g * row());
        }
    }
};

// One head's rows in pages, token by token: to divide for each one's page takes longer than to use it.
struct Walk {
    const int64_t* page;
    const int64_t* last_page;
    const uint8_t* row;
    const uint8_t* first;  // page 0's first row of this head
    long slot, page_tokens, stride, page_stride, size, apart;  // apart: bytes to the same row of the next page

    // From token `at` to token `last`; `beyond`: of keys 0, of values what lies between a page's sides.
    Walk(const Attention& call, const int64_t* pages, long at, long last, long kv_head, long beyond)
        : page(pages + at / call.page_tokens), last_page(pages + last / call.page_tokens),
          first(call.kv + kv_head * call.row() + beyond), slot(at % call.page_tokens), page_tokens(call.page_tokens),
          stride(call.kv_heads * call.row()), page_stride(call.page_stride), size(call.row()) {
        open();
    }
    void open() {
        row = first + *page * page_stride + slot * stride;
        apart = page < last_page ? (page[1] - page[0]) * page_stride : 0;
    }
    void fetch() const {  // pages lie anywhere: no cache guesses where the next one is
        for (long line = 0; line < size; line += 64) _mm_prefetch(row + apart + line, _MM_HINT_T0);
    }
    void next() {
        if (++slot < page_tokens) {
            row += stride;
        } else if (page < last_page) {
            slot = 0;
            ++page;
            open();
        }
    }
};

// One row's attention, `R` heads that share a KV head. V: vectors a head. scores: [R][room], room a multiple of LANES.
template <int K, int V, int R>
void attend_row(const Attention& call, const int64_t* pages, long row, long head, long kv_head, float* scores, long room) {
    const long last = call.positions[row], first = call.first_seen(last) / LANES * LANES, end = last + 1;
    const float* queries = call.qkv + row * call.row_size() + head * call.head_dim;
    Walk keys(call, pages, first, last, kv_head, 0);
    for (long at = first; at < end; at += LANES) {
        Vector parts[R][LANES];
        float scales[LANES];
        for (long j = 0; j < LANES; ++j) {
            keys.fetch();
            scales[j] = scale_of<K>(keys.row, call.head_dim);
            Vector wide[V];
            for (int v = 0; v < V; ++v) wide[v] = number<K>(keys.row, v * LANES);
            if (at + j < last) keys.next();
            for (int r = 0; r < R; ++r) {
                Vector sum = wide[0] * load(queries + r * call.head_dim);
                for (int v = 1; v < V; ++v) {
                    sum = fma(wide[v], load(queries + r * call.head_dim + v * LANES), sum);
                }
                parts[r][j] = sum;
            }
        }
        const Mask seen = but(first_lanes(end - at), first_lanes(call.first_seen(last) - at));
        for (int r = 0; r < R; ++r) {
            store(scores + r * room + at, pick(seen, sums_of(parts[r]) * load(scales), all(NOTHING)));
        }
    }
    Vector sums[R][V];
    float totals[R];
    for (int r = 0; r < R; ++r) {
        Vector most = all(NOTHING), total = all(0.0f);
        for (long at = first; at < end; at += LANES) most = greater(most, load(scores + r * room + at));
        most = all(greatest(most));
        for (long at = first; at < end; at += LANES) {
            const Vector weight = exponential(load(scores + r * room + at) - most);
            total += weight;
            store(scores + r * room + at, weight);
        }
        totals[r] = sum(total);
        for (int v = 0; v < V; ++v) sums[r][v] = all(0.0f);
    }
    Walk values(call, pages, first, last, kv_head, call.side());
    for (long at = first; at < end; ++at, values.next()) {
        values.fetch();
        const float scale = scale_of<K>(values.row, call.head_dim);
        Vector weights[R];
        for (int r = 0; r < R; ++r) weights[r] = all(scores[r * room + at] * scale);
        for (int v = 0; v < V; ++v) {
            const Vector wide = number<K>(values.row, v * LANES);
            for (int r = 0; r < R; ++r) sums[r][v] = fma(wide, weights[r], sums[r][v]);
        }
    }
    for (int r = 0; r < R; ++r) {
        float* to = call.out + (row * call.heads + head + r) * call.head_dim;
        for (int v = 0; v < V; ++v) store(to + v * LANES, sums[r][v] / all(totals[r]));
    }
}

template <int K, int V>
void attend_heads(const Attention& call, const int64_t* pages, long row, long kv_head, std::vector<float>& scores) {
    const long group = call.heads / call.kv_heads;
    const long room = (call.positions[row] / LANES + 1) * LANES;
    scores.resize(4 * room);
    for (long at = 0; at < group; at += 4) {
        const long head = kv_head * group + at;
        switch (std::min(4L, group - at)) {
            case 1: attend_row<K, V, 1>(call, pages, row, head, kv_head, scores.data(), room); break;
            case 2: attend_row<K, V, 2>(call, pages, row, head, kv_head, scores.data(), room); break;
            case 3: attend_row<K, V, 3>(call, pages, row, head, kv_head, scores.data(), room); break;
            default: attend_row<K, V, 4>(call, pages, row, head, kv_head, scores.data(), room); break;
        }
    }
}

template <int K>
void attend_heads(const Attention& call, const int64_t* pages, long row, long kv_head, std::vector<float>& scores) {
    switch (call.head_dim) {
        case 16: attend_heads<K, 16 / LANES>(call, pages, row, kv_head, scores); break;
        case 32: attend_heads<K, 32 / LANES>(call, pages, row, kv_head, scores); break;
        case 64: attend_heads<K, 64 / LANES>(call, pages, row, kv_head, scores); break;
        case 80: attend_heads<K, 80 / LANES>(call, pages, row, kv_head, scores); break;
        case 96: attend_heads<K, 96 / LANES>(call, pages, row, kv_head, scores); break;
        default: attend_heads<K, 128 / LANES>(call, pages, row, kv_head, scores); break;
    }
}

}  // namespace tandem
