// Attention of many rows of one sequence: blocks of scores by the same tiles as the weights' products, and the online
// softmax of Milakov and Gimelshein (2018) over blocks of keys.
#pragma once

#include "attention.h"

namespace tandem {

struct Prompt {
    const Attention& call;
    const int64_t* pages;
    long first_row, rows;
    std::vector<float>& keys;    // [kv_heads][key panels][head_dim][PANEL]
    std::vector<float>& values;  // [kv_heads][value panels][keys][PANEL]

    long end() const { return call.positions[first_row + rows - 1] + 1; }
    long key_panels() const { return (end() + PANEL - 1) / PANEL; }
    long value_panels() const { return (call.head_dim + PANEL - 1) / PANEL; }
    float* key_panel(long kv_head, long at) const {
        return keys.data() + (kv_head * key_panels() + at) * call.head_dim * PANEL;
    }
    float* value_panel(long kv_head, long at) const {
        return values.data() + (kv_head * value_panels() + at) * key_panels() * PANEL * PANEL;
    }

    // One panel of keys and their values, in fp32; behind the end there are zeros.
    template <int K>
    void widen_panel(long kv_head, long panel) const {
        float* to = key_panel(kv_head, panel);
        for (long j = 0; j < PANEL; ++j) {
            const long at = panel * PANEL + j;
            const uint8_t* key = at < end() ? call.key(pages, at, kv_head) : nullptr;
            const Vector of_key = all(key ? scale_of<K>(key, call.head_dim) : 0.0f);
            const Vector of_value = all(key ? scale_of<K>(key + call.side(), call.head_dim) : 0.0f);
            for (long d = 0; d < call.head_dim; d += LANES) {
                const Vector wide = key ? number<K>(key, d) * of_key : all(0.0f);
                const Vector value = key ? number<K>(key + call.side(), d) * of_value : all(0.0f);
                alignas(64) float lanes[LANES];
                store(lanes, wide);
                for (long l = 0; l < LANES; ++l) to[(d + l) * PANEL + j] = lanes[l];
                store(value_panel(kv_head, d / PANEL) + at * PANEL + d % PANEL, value);
            }
        }
    }

    // Scores of one row → weights, relative to its greatest score so far; what it had is scaled to that.
    void soften(long position, long from, long width, float* scores, float& most, float& total, float* sums) const {
        const long seen_from = call.first_seen(position) - from, seen_to = position + 1 - from;
        Vector top = all(most);
        for (long at = 0; at < width; at += LANES) {
            const Mask seen = but(first_lanes(seen_to - at), first_lanes(seen_from - at));
            const Vector value = pick(seen, load(scores + at), all(NOTHING));
            store(scores + at, value);
            top = greater(top, value);
        }
        const float now = greatest(top);
        const float base = now == NOTHING ? 0.0f : now;
        Vector added = all(0.0f);
        for (long at = 0; at < width; at += LANES) {
            const Vector weight = exponential(load(scores + at) - all(base));
            added += weight;
            store(scores + at, weight);
        }
        const float kept = std::exp(most - base);
        total = total * kept + sum(added);
        most = now;
        for (long d = 0; d < value_panels() * PANEL; d += LANES) {
            store(sums + d, load(sums + d) * all(kept));
        }
    }

    // One head, a block of queries.
    void attend(long head, long from_row, long count) const {
        const long kv_head = head / (call.heads / call.kv_heads), size = value_panels() * PANEL;
        const long first = first_row + from_row, last = call.positions[first + count - 1];
        alignas(64) float scores[QUERIES_AT_ONCE * KEYS_AT_ONCE];
        alignas(64) float sums[QUERIES_AT_ONCE * 256];
        float most[QUERIES_AT_ONCE], totals[QUERIES_AT_ONCE];
        std::fill_n(sums, count * size, 0.0f);
        std::fill_n(most, count, NOTHING);
        std::fill_n(totals, count, 0.0f);
        const float* queries = call.qkv + first * call.row_size() + head * call.head_dim;
        const long begin = call.first_seen(call.positions[first]) / PANEL * PANEL;
        for (long key = begin; key <= last; key += KEYS_AT_ONCE) {
            const long panels = (std::min(KEYS_AT_ONCE, last + 1 - key) + PANEL - 1) / PANEL;
            for (long m = 0; m < count; ++m) std::fill_n(scores + m * KEYS_AT_ONCE, panels * PANEL, 0.0f);
            for (long at = 0; at < panels; ++at) {
                const WidePanel panel{key_panel(kv_head, key / PANEL + at)};
                tiles(queries, call.row_size(), count, panel, call.head_dim, scores + at * PANEL, KEYS_AT_ONCE);
            }
            for (long m = 0; m < count; ++m) {
                soften(call.positions[first + m], key, panels * PANEL, scores + m * KEYS_AT_ONCE, most[m], totals[m],
                       sums + m * size);
            }
            for (long at = 0; at < value_panels(); ++at) {
                const WidePanel panel{value_panel(kv_head, at) + key * PANEL};
                tiles(scores, KEYS_AT_ONCE, count, panel, panels * PANEL, sums + at * PANEL, size);
            }
        }
        for (long m = 0; m < count; ++m) {
            float* to = call.out + ((first + m) * call.heads + head) * call.head_dim;
            for (long d = 0; d < call.head_dim; ++d) to[d] = sums[m * size + d] / totals[m];
        }
    }

    template <int K>
    void run() const {
        keys.resize(call.kv_heads * key_panels() * PANEL * call.head_dim);
        values.resize(call.kv_heads * value_panels() * key_panels() * PANEL * PANEL);
        const long blocks = (rows + QUERIES_AT_ONCE - 1) / QUERIES_AT_ONCE;
#pragma omp parallel num_threads(call.threads) if (call.threads > 1)
        {
#pragma omp for schedule(static)
            for (long at = 0; at < call.kv_heads * key_panels(); ++at) {
                widen_panel<K>(at / key_panels(), at % key_panels());
            }
#pragma omp for schedule(dynamic, 1)
            for (long at = 0; at < call.heads * blocks; ++at) {
                const long from = (blocks - 1 - at / call.heads) * QUERIES_AT_ONCE;  // the longest first
                attend(at % call.heads, from, std::min(QUERIES_AT_ONCE, rows - from));
            }
        }
    }
};

}  // namespace tandem
