// What reader.cpp and writer.cpp share: stacks of blocks, and a desk to go through them at. The steps are those of
// core/block.py; what is called by which name there is called so here.
#pragma once

#include <algorithm>

#include "crew.h"
#include "kernels.h"

struct Norm {
    const float *weight, *bias;  // no weight: no norm
    float epsilon;
};

struct Block {
    Norm around_attention, around_cross, around_feed_forward;
    const Matrix *inward, *output;                // queries, keys and values in one
    const Matrix *query, *memory, *cross_output;  // keys and values in one
    const Matrix *wide, *narrow;
};

struct Stack {
    const Block* blocks;
    int count, dim, heads;
    int before;  // the norm stands before each sublayer, and not after the residual
    int activation;
    Norm closing;
};

struct Entry {
    const float *words, *positions;
    float scale;
    Norm norm;
};

constexpr int NUMBER = 16;  // multiplications that take as long as what is done with one number between products

// Room for some rows, and what a crew does with them.
struct Desk {
    const Kernels& by;
    const Stack& stack;
    Crew& crew;
    const long own;  // of the scratch, each member's
    Buffer normed, inner, context, back, scratch, scales;
    std::unique_ptr<uint8_t[]> bytes;
    std::unique_ptr<int32_t[]> zeros;

    static int widest(const Stack& stack) {
        int most = 3 * stack.dim;
        for (int i = 0; i < stack.count; ++i) most = std::max(most, stack.blocks[i].wide->tall);
        return most + stack.blocks[0].wide->by->step;
    }

    Desk(const Kernels& by, const Stack& stack, Crew& crew, size_t rows, int longest)
        : by(by), stack(stack), crew(crew), own(scratch_of(longest, stack.heads, stack.dim / stack.heads)),
          normed(buffer(rows * stack.dim)), inner(buffer(rows * widest(stack))), context(buffer(rows * stack.dim)),
          back(buffer(rows * stack.dim)), scratch(buffer(crew.size() * own)), scales(buffer(rows)),
          bytes(new uint8_t[rows * widest(stack)]), zeros(new int32_t[rows]) {}

    // work(first, some) on rows of so many numbers each.
    template <typename Work>
    void each_row(int count, int numbers, Work work) {
        crew.each(count, (long)NUMBER * count * numbers, [&](int from, int to, int) { work(from, to - from); });
    }

    Vectors vectors(const Matrix& m, const float* x, int count) {
        const auto some = [&](long first, int some) {
            return Vectors{x + first * m.wide, m.wide, bytes.get() + first * m.deep, scales.get() + first,
                           zeros.get() + first, some};
        };
        if (m.bytes)
            each_row(count, m.wide, [&](int first, int rows) {
                Vectors v = some(first, rows);
                by.quantise(m, v);
            });
        return some(0, count);
    }

    void product(const Matrix& m, const float* x, int count, float* y) {
        product(m, vectors(m, x, count), 0, m.panels, y, m.tall);
    }

    // Of the panels [from, to), to each member some.
    void product(const Matrix& m, const Vectors& v, int from, int to, float* y, long stride) {
        crew.each(to - from, (long)v.count * m.wide * (to - from) * by.panel, [&](int first, int last, int) {
            by.product(m, v, from + first, from + last, y + (long)first * by.panel, stride);
        });
    }

    // work(row, head, some, scratch) for all heads of some rows: to each member, some of them.
    template <typename Work>
    void each_head(int rows, long cost, Work work) {
        const int heads = stack.heads;
        crew.each(rows * heads, cost, [&](int from, int to, int member) {
            for (int some; from < to; from += some) {
                some = std::min(to - from, heads - from % heads);
                work(from / heads, from % heads, some, scratch.get() + member * own);
            }
        });
    }

    void normalise(const Norm& norm, float* x, int count, float* y) {
        each_row(count, stack.dim, [&](long first, int some) {
            by.norm(x + first * stack.dim, some, stack.dim, norm.weight, norm.bias, norm.epsilon, y + first * stack.dim);
        });
    }

    template <typename Sublayer>
    void residual(const Norm& norm, float* x, int count, Sublayer sublayer) {
        if (stack.before) normalise(norm, x, count, normed.get());
        sublayer(stack.before ? normed.get() : x, back.get());
        each_row(count, stack.dim, [&](long first, int some) {
            by.add(x + first * stack.dim, back.get() + first * stack.dim, (long)some * stack.dim);
        });
        if (!stack.before) normalise(norm, x, count, x);
    }

    void feed_forward(const Block& block, float* x, int count) {
        residual(block.around_feed_forward, x, count, [&](const float* h, float* y) {
            product(*block.wide, h, count, inner.get());
            each_row(count, block.wide->tall, [&](long first, int some) {
                by.activate((Activation)stack.activation, inner.get() + first * block.wide->tall,
                            (long)some * block.wide->tall);
            });
            product(*block.narrow, inner.get(), count, y);
        });
    }

    void embed(const Entry& side, const int* tokens, int count, int first, float* x) {
        const int dim = stack.dim;
        for (int i = 0; i < count; ++i)
            by.embed(x + (long)i * dim, side.words + (long)tokens[i] * dim, side.positions + (long)(first + i) * dim,
                     side.scale, dim);
        if (side.norm.weight) normalise(side.norm, x, count, x);
    }

    // Whole sentences, end to end, through all blocks; `seen` is shown the keys and values of each block.
    template <typename Seen>
    void read(float* x, const int* lengths, int sentences, bool causal, Seen seen) {
        const int dim = stack.dim, head_dim = dim / stack.heads;
        std::vector<long> starts;
        long count = 0, pairs = 0;
        for (int s = 0; s < sentences; ++s) {
            starts.push_back(count);
            count += lengths[s];
            pairs += (long)lengths[s] * lengths[s];
        }
        for (int i = 0; i < stack.count; ++i) {
            const Block& block = stack.blocks[i];
            residual(block.around_attention, x, count, [&](const float* h, float* y) {
                product(*block.inward, h, count, inner.get());
                seen(i, inner.get() + dim);
                each_head(sentences, 2 * pairs * dim, [&](int s, int head, int some, float* scratch) {
                    const float* q = inner.get() + 3L * dim * starts[s] + head * head_dim;
                    by.look_within(q, q + dim, q + 2 * dim, lengths[s], 3L * dim, some, head_dim, causal, scratch,
                                   context.get() + dim * starts[s] + head * head_dim, dim);
                });
                product(*block.output, context.get(), count, y);
            });
            feed_forward(block, x, count);
        }
        if (stack.closing.weight) normalise(stack.closing, x, count, x);
    }
};
