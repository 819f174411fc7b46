// What a model is taught with, in several threads; the kernels are those of learning.cpp.
#include <algorithm>

#include "kernels.h"
#include "sharing.h"

Team team = nullptr;

namespace {

// Work in `threads`, each with room for so many floats: work(from, to, room) on equal shares of [0, count). The room
// stays, since fresh memory costs time.
template <typename Work>
int with_room(int count, int threads, size_t size, Work work) {
    return shared_out(count, threads, [&](int from, int to) {
        thread_local Buffer room;
        thread_local size_t has = 0;
        if (has < size) {
            has = 0;
            room = buffer(size);
            has = size;
        }
        work(from, to, room.get());
    });
}

Side behind(const Side& side, int first) {
    return {side.at + (side.turned ? first * side.stride : first), side.stride, side.turned};
}

Rows behind(Rows rows, int first) { return {rows.at + first * rows.stride, rows.stride}; }

int longest(const int* starts, int sentences) {
    int most = 0;
    for (int s = 0; s < sentences; ++s) most = std::max(most, starts[s + 1] - starts[s]);
    return most;
}

}  // namespace

// ---- what Python calls. 0: there was not memory enough, or there are no such kernels (regard_knows)

extern "C" {

void regard_team(Team its) { team = its; }

// C = AᵀB + bias, or is added to: A (count, m), B (count, n), C (m, n), whose rows lie `stride` apart. Its longer side is
// shared out.
int regard_multiply(const char* kernels, const Side* a, int m, const Side* b, int n, int count, const float* bias,
                    float* c, long stride, int add, int threads) {
    const Kernels* found = kernels_named(kernels);
    if (!found) return 0;
    const Learning& by = *found->learning;
    const bool tall = m >= n;
    const int size = tall ? m : n, tile = tall ? by.rows : by.columns;
    return with_room((size + tile - 1) / tile, threads, PRODUCT_ROOM, [=, &by](int from, int to, float* room) {
        const int first = from * tile, some = std::min(size, to * tile) - first;
        if (tall)
            by.multiply(behind(*a, first), some, *b, n, count, bias, c + first * stride, stride, add, room);
        else
            by.multiply(*a, m, behind(*b, first), some, count, bias ? bias + first : nullptr, c + first, stride, add,
                        room);
    });
}

// The losses of (rows, count) logits; their gradients take their place.
int regard_lose(const char* kernels, float* logits, int rows, int count, const int64_t* words, float smoothing,
                float* nll, float* total, int threads) {
    const Kernels* by = kernels_named(kernels);
    return by && shared_out(rows, threads, [=](int from, int to) {
        for (int row = from; row < to; ++row)
            by->learning->lose(logits + (long)row * count, count, words[row], smoothing, nll + row, total + row);
    });
}

}

namespace {

// Sentence s is rows [asking[s], asking[s + 1]) of q, and [asked[s], asked[s + 1]) of k and v.
struct Looking {
    Heads heads;
    Rows q, k, v;
    const int *asking, *asked;
    int sentences;
};

// work(s, queries, keys, room) for each sentence, whose queries and keys begin at asking[s] and asked[s].
template <typename Work>
int each_sentence(const Looking& all, int threads, Work work) {
    const size_t room_of = look_room(longest(all.asked, all.sentences), all.heads.dim);
    return with_room(all.sentences, threads, room_of, [&](int from, int to, float* room) {
        for (int s = from; s < to; ++s)
            work(s, all.asking[s + 1] - all.asking[s], all.asked[s + 1] - all.asked[s], room);
    });
}

}  // namespace

extern "C" {

int regard_look(const char* kernels, const Looking* given, float* context, float* mass, int threads) {
    const Kernels* by = kernels_named(kernels);
    const Looking& all = *given;
    const long heads = all.heads.count, width = heads * all.heads.dim;
    return by && each_sentence(all, threads, [&](int s, int queries, int keys, float* room) {
        const int query = all.asking[s], key = all.asked[s];
        by->learning->look(all.heads, behind(all.q, query), queries, behind(all.k, key), behind(all.v, key), keys, room,
                           context + query * width, mass + query * heads);
    });
}

int regard_unlook(const char* kernels, const Looking* given, const float* mass, const float* d_context, float* dq,
                  float* dk, float* dv, int threads) {
    const Kernels* by = kernels_named(kernels);
    const Looking& all = *given;
    const long heads = all.heads.count, width = heads * all.heads.dim;
    return by && each_sentence(all, threads, [&](int s, int queries, int keys, float* room) {
        const int query = all.asking[s], key = all.asked[s];
        by->learning->unlook(all.heads, behind(all.q, query), queries, behind(all.k, key), behind(all.v, key), keys,
                             mass + query * heads, d_context + query * width, room, dq + query * width,
                             dk + key * width, dv + key * width);
    });
}

}
