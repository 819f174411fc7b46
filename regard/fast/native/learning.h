// What learning asks of a processor besides: products of matrices that change all the time, the loss of a row of logits,
// and attention with its gradients where rows lie end to end. learning.cpp is compiled once for each, as kernels.cpp is.
#pragma once

// PROCESSOR is told by whoever compiles: what is named OWN(kernels) is vnni_kernels for vnni, and so on.
#define JOINED(processor, what) processor##_##what
#define OF(processor, what) JOINED(processor, what)
#define OWN(what) OF(PROCESSOR, what)

constexpr int DEPTH = 384;     // vectors of a product that are near the processor at a time,
constexpr int ACROSS = 1024;   // with so many of their numbers on one side
constexpr int DOWN = 128;      // and so many on the other
constexpr int QUERIES = 64;    // whose weights exist at a time, when attention learns
constexpr long PRODUCT_ROOM = (long)DEPTH * (ACROSS + DOWN + 48);  // floats that `multiply` works in

// One side of a product: `count` vectors, `stride` apart; or their numbers lie side by side, and those are so far apart.
struct Side {
    const float* at;
    long stride;
    bool turned;
};

// Rows of queries, keys or values that lie `stride` apart, each of all heads side by side.
struct Rows {
    const float* at;
    long stride;
};

struct Heads {
    int count, dim;
    float scale;
    bool causal;  // a query sees the keys up to its own place
};

struct Learning {
    int rows, columns;  // of a tile, in which a product is best cut
    // C = AᵀB + bias, or is added to: A (count, m), B (count, n), C (m, n), whose rows lie `stride` apart.
    void (*multiply)(const Side& a, int m, const Side& b, int n, int count, const float* bias, float* c, long stride,
                     bool add, float* room);
    // The loss of one row of logits, without smoothing and with it; its gradient takes their place.
    void (*lose)(float* logits, int count, long word, float smoothing, float* nll, float* total);
    // Queries of one sentence look at its keys; `mass` (queries, heads) is the log of what their weights were divided by.
    void (*look)(const Heads&, Rows q, int queries, Rows k, Rows v, int keys, float* room, float* context, float* mass);
    // The way back: from the gradient of the context to those of queries, keys and values, which lie as they do there.
    void (*unlook)(const Heads&, Rows q, int queries, Rows k, Rows v, int keys, const float* mass, const float* d_context,
                   float* room, float* dq, float* dk, float* dv);
};

// Floats that `look` and `unlook` work in.
inline long look_room(int keys, int dim) {
    const long room = (keys + 15) / 16 * 16;
    return room * (2 * dim + 2 * QUERIES) + 64;
}

extern const Learning plain_learning;
#ifdef X86
extern const Learning avx2_learning, vnni_learning;
#endif
