// What reader.cpp and writer.cpp share: stacks of blocks, and a desk to go through them at. The steps are those of
// core/block.py; what is called by which name there is called so here.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "sharing.h"

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

// Room for some rows, and what is done with them.
struct Desk {
    const Kernels& by;
    const Stack& stack;
    Buffer normed, inner, context, back, scratch, scales;
    std::unique_ptr<uint8_t[]> bytes;
    std::unique_ptr<int32_t[]> zeros;

    static int widest(const Stack& stack) {
        int most = 3 * stack.dim;
        for (int i = 0; i < stack.count; ++i) most = std::max(most, stack.blocks[i].wide->tall);
        return most + STEP;
    }

    Desk(const Kernels& by, const Stack& stack, size_t rows, int longest)
        : by(by), stack(stack), normed(buffer(rows * stack.dim)), inner(buffer(rows * widest(stack))),
          context(buffer(rows * stack.dim)), back(buffer(rows * stack.dim)),
          scratch(buffer(scratch_of(longest, stack.heads, stack.dim / stack.heads))), scales(buffer(rows)),
          bytes(new uint8_t[rows * widest(stack)]), zeros(new int32_t[rows]) {}

    Vectors vectors(const Matrix& m, const float* x, int count) {
        Vectors v{x, m.wide, bytes.get(), scales.get(), zeros.get(), count};
        if (m.bytes) by.quantise(m, v);
        return v;
    }

    void product(const Matrix& m, const float* x, int count, float* y) {
        by.product(m, vectors(m, x, count), 0, m.panels, y, m.tall);
    }

    void normalise(const Norm& norm, float* x, int count, float* y) {
        by.norm(x, count, stack.dim, norm.weight, norm.bias, norm.epsilon, y);
    }

    template <typename Sublayer>
    void residual(const Norm& norm, float* x, int count, Sublayer sublayer) {
        if (stack.before) normalise(norm, x, count, normed.get());
        sublayer(stack.before ? normed.get() : x, back.get());
        by.add(x, back.get(), (long)count * stack.dim);
        if (!stack.before) normalise(norm, x, count, x);
    }

    void feed_forward(const Block& block, float* x, int count) {
        residual(block.around_feed_forward, x, count, [&](const float* h, float* y) {
            product(*block.wide, h, count, inner.get());
            by.activate((Activation)stack.activation, inner.get(), (long)count * block.wide->tall);
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
        int count = 0;
        for (int s = 0; s < sentences; ++s) count += lengths[s];
        for (int i = 0; i < stack.count; ++i) {
            const Block& block = stack.blocks[i];
            residual(block.around_attention, x, count, [&](const float* h, float* y) {
                product(*block.inward, h, count, inner.get());
                seen(i, inner.get() + dim);
                const float* q = inner.get();
                float* to = context.get();
                for (int s = 0; s < sentences; ++s) {
                    by.look_within(q, q + dim, q + 2 * dim, lengths[s], 3L * dim, stack.heads, head_dim, causal,
                                   scratch.get(), to);
                    q += 3L * dim * lengths[s];
                    to += (long)dim * lengths[s];
                }
                product(*block.output, context.get(), count, y);
            });
            feed_forward(block, x, count);
        }
        if (stack.closing.weight) normalise(stack.closing, x, count, x);
    }
};
