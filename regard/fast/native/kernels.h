// What is worth writing for each kind of processor: products of matrices with some vectors, and the loops between them.
// kernels.cpp is compiled once for each; which one serves is decided when the program runs.
#pragma once

#include <cstdint>

#include "learning.h"

constexpr int STEP = 4;      // inputs in bytes that lie side by side in a panel
constexpr int TOKENS = 192;  // vectors that go through products at a time: their numbers stay near the processor
constexpr float LEAST = 1e-36f;  // of a vector's numbers: what is smaller is nothing, since 255 / LEAST has to be finite

struct Kernels;

// W of y = Wx + b, laid out in panels of some rows: the numbers that meet one input stand together.
struct Matrix {
    const Kernels* by;
    int tall, wide;         // outputs and inputs
    int deep;               // inputs, rounded up to a multiple of by->step
    int panels;             // outputs / by->panel, rounded up
    float* floats;          // (panels, wide, panel), or
    int8_t* bytes;          // (panels, deep / 4, panel, 4): what they are worth is scales[row] * byte
    float* scales;          // (panels * panel)
    int32_t* sums;          // (panels * panel) of the bytes in each row
    float* bias;            // (panels * panel), zero where there is none
};

// Some vectors as a product takes them: as they are, and in whole numbers, each by its own scale.
struct Vectors {
    const float* floats;
    long stride;            // between two of them
    uint8_t* bytes;         // (count, deep): what they are worth is scales[row] * (byte - zeros[row])
    float* scales;
    int32_t* zeros;
    int count;
};

enum Activation { RELU, GELU, GELU_TANH, SILU };

// The best of the words seen so far, best first, and log of the sum of exp over all of them.
struct Best {
    float top, sum;         // the sum is of exp(logit - top)
    int asked, found;
    float* logits;
    int* words;
    int wanted;             // a word whose logit is asked for, or -1
    float wanted_logit;
};

struct Kernels {
    const char* name;
    int panel;              // outputs that are computed side by side
    int most;               // of a weight in whole numbers
    int step;               // inputs in bytes come in multiples of this
    void (*quantise)(const Matrix&, Vectors&);
    // Outputs of the panels [from, to) at y[row * stride + output - panel * from].
    void (*product)(const Matrix&, const Vectors&, int from, int to, float* y, long stride);
    void (*norm)(float* x, int count, int dim, const float* weight, const float* bias, float epsilon, float* y);
    void (*activate)(Activation, float* x, long count);
    void (*add)(float* x, const float* y, long count);  // x += y
    void (*embed)(float* x, const float* word, const float* position, float scale, int dim);
    // One query of all heads looks at `count` keys, which lie `stride` apart at places[i], and reads the values.
    void (*look)(const float* q, const float* keys, const float* values, const int* places, int count, long stride,
                 int heads, int head_dim, float* scratch, float* context);
    // All words of a sentence look at all, or at those before them; what they read lies `width` apart.
    void (*look_within)(const float* q, const float* keys, const float* values, int count, long stride, int heads,
                        int head_dim, bool causal, float* scratch, float* context, long width);
    void (*see)(Best&, float* logits, int first, int count, const int* banned, int bans);
    const Learning* learning;
};

// Room that look and look_within need, in floats.
inline long scratch_of(int count, int heads, int head_dim) {
    const long keys = (count + 15) / 16 * 16;
    return keys * (heads > head_dim + 4 ? heads : head_dim + 4) + 64;
}

constexpr const char *plain_name = "plain C++", *avx2_name = "AVX2", *vnni_name = "AVX-512 VNNI", *amx_name = "AMX";

extern const Kernels plain_kernels;
#ifdef X86
extern const Kernels avx2_kernels, vnni_kernels;
// A compiler that is too old to know tiles of registers does without them.
#if defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define TILES
extern const Kernels amx_kernels;
#endif
#endif

// Those of this name, where the processor can run them; without a name, the best that it can.
const Kernels* kernels_named(const char* name);
