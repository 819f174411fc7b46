// Some floats at a time, for whichever processor this is compiled, and what attention does with them. Nothing of the
// standard library's templates is used here: the linker would keep one copy of them for all processors.
#pragma once

#include <initializer_list>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));

inline Floats load(const float* from) {
    Floats v;
    memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, Floats v) { memcpy(to, &v, sizeof v); }

// The widest vectors of the processor. Products have two of them side by side: what is read of one vector then serves
// both, and neither sum waits for itself.
#ifdef __AVX512F__
typedef float Wide __attribute__((vector_size(64)));
typedef int32_t WideInts __attribute__((vector_size(64)));
#else
typedef Floats Wide;
typedef Ints WideInts;
#endif

constexpr int LANES = sizeof(Wide) / sizeof(float), COLUMNS = 2 * LANES;

inline Wide load_wide(const float* from) {
    Wide v;
    memcpy(&v, from, sizeof v);
    return v;
}

inline void store_wide(float* to, Wide v) { memcpy(to, &v, sizeof v); }

inline WideInts load_ints(const int32_t* from) {
    WideInts v;
    memcpy(&v, from, sizeof v);
    return v;
}

// a * b + c, in one rounding where the processor can: said and not left to the compiler, so that every row is alike.
inline Floats fused(Floats a, Floats b, Floats c) {
#ifdef __FMA__
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

#ifdef __AVX512F__
inline Wide fused(Wide a, Wide b, Wide c) { return (Wide)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#endif

template <typename V = Floats>
inline V all(float n) {
    return n - V{};  // which a compiler knows to be n, and of n + 0 it does not: that of -0 is 0
}

// Of a number and a NaN, the second.
template <typename V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}

inline float sum_of(Floats v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

inline float largest_of(Floats v) {
    float top = v[0];
    for (int i = 1; i < 8; ++i) top = v[i] > top ? v[i] : top;
    return top;
}

#ifdef __AVX512F__
struct Halves {
    Floats low, high;
};

inline Halves halves_of(Wide v) {
    Halves found;
    memcpy(&found, &v, sizeof found);
    return found;
}

inline float sum_of(Wide v) { return sum_of(halves_of(v).low + halves_of(v).high); }

inline float largest_of(Wide v) { return largest_of(larger(halves_of(v).low, halves_of(v).high)); }
#endif

// Added and taken away again, it leaves the nearest whole number: it has no room for anything behind the point.
constexpr float MAGIC = 12582912.0f;

// e^x = 2^n e^r with |r| <= log(2) / 2, and e^r by its series.
template <typename V>
inline V exp_of(V x) {
    typedef decltype(x > x) Whole;
    x = larger(all<V>(-87.0f), x);  // in this order a NaN stays one
    x = -larger(all<V>(-88.0f), -x);
    const V n = fused(x, all<V>(1.44269504088896341f), all<V>(MAGIC)) - MAGIC;
    const V r = fused(n, all<V>(2.12194440e-4f), fused(n, all<V>(-0.693359375f), x));
    V p = all<V>(1.0f / 5040);
    for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fused(p, r, all<V>(term));
    const Whole power = (__builtin_convertvector(n, Whole) + 127) << 23;
    return p * (V)power;
}

// ---- attention

struct Mass {
    float top, sum;  // the sum is of exp(score - top)
};

// Scores become weights that sum to one; what lies between count and the next multiple of 8 is written too.
Mass softmax(float* scores, int count) {
    const int full = (count + 7) / 8 * 8;
    for (int i = count; i < full; ++i) scores[i] = -INFINITY;
    Floats tops = load(scores);
    for (int i = 8; i < full; i += 8) tops = larger(tops, load(scores + i));
    const float top = largest_of(tops);
    Floats sums{};
    for (int i = 0; i < full; i += 8) {
        const Floats raised = exp_of(load(scores + i) - top);
        store(scores + i, raised);
        sums += raised;
    }
    for (int i = count; i < full; ++i) {
        sums[i % 8] -= scores[i];
        scores[i] = 0.0f;
    }
    const float sum = sum_of(sums), one = 1.0f / sum;
    for (int i = 0; i < full; i += 8) store(scores + i, load(scores + i) * one);
    return {top, sum};
}

// Eight lines of eight numbers become their columns.
inline void turn_eight(const float* from, long stride, float* to, long room) {
#ifdef __AVX2__
    __m256 lines[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) lines[i] = _mm256_loadu_ps(from + i * stride);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(lines[i], lines[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(lines[i], lines[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; ++half) {
            fours[i + 2 * half] = _mm256_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0x44);
            fours[i + 2 * half + 1] = _mm256_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * room, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * room, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
    }
#else
    for (int i = 0; i < 8; ++i)
        for (int d = 0; d < 8; ++d) to[d * room + i] = from[i * stride + d];
#endif
}

// Keys of one head, which lie `stride` apart, as columns: (head_dim, room), zero behind the last.
inline void turn(const float* keys, long stride, int count, int head_dim, long room, float* columns) {
    const int even = count / 8 * 8, wide = head_dim / 8 * 8;
    for (int i = 0; i < even; i += 8) {
        for (int d = 0; d < wide; d += 8) turn_eight(keys + i * stride + d, stride, columns + d * room + i, room);
        for (int d = wide; d < head_dim; ++d)
            for (int n = i; n < i + 8; ++n) columns[d * room + n] = keys[n * stride + d];
    }
    for (int d = 0; d < head_dim; ++d) {
        for (int i = even; i < count; ++i) columns[d * room + i] = keys[i * stride + d];
        for (long i = count; i < room; ++i) columns[d * room + i] = 0.0f;
    }
}

// N queries of one head against all keys, which stand as columns: (head_dim, room).
template <int N>
void scores_of(const float* q, long stride, const float* columns, int head_dim, long room, float scale, float* scores) {
    for (long at = 0; at < room; at += 16) {
        Floats found[N][2] = {};
        for (int d = 0; d < head_dim; ++d) {
            const Floats left = load(columns + d * room + at), right = load(columns + d * room + at + 8);
            for (int n = 0; n < N; ++n) {
                const Floats number = all(q[n * stride + d]);
                found[n][0] = fused(number, left, found[n][0]);
                found[n][1] = fused(number, right, found[n][1]);
            }
        }
        for (int n = 0; n < N; ++n) {
            store(scores + n * room + at, found[n][0] * scale);
            store(scores + n * room + at + 8, found[n][1] * scale);
        }
    }
}

// N mixtures of `count` vectors: weight i of mixture n stands at weights[n * apart + i * along].
template <int N, bool ADD = false>
void read(const float* weights, long apart, long along, const float* values, long stride, int count, int head_dim,
          float* mixed, long width) {
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) {
        Floats found[N][2] = {};
        for (int n = 0; ADD && n < N; ++n) {
            found[n][0] = load(mixed + n * width + d);
            found[n][1] = load(mixed + n * width + d + 8);
        }
        for (int i = 0; i < count; ++i) {
            const Floats left = load(values + i * stride + d), right = load(values + i * stride + d + 8);
            for (int n = 0; n < N; ++n) {
                const Floats weight = all(weights[n * apart + i * along]);
                found[n][0] = fused(weight, left, found[n][0]);
                found[n][1] = fused(weight, right, found[n][1]);
            }
        }
        for (int n = 0; n < N; ++n) {
            store(mixed + n * width + d, found[n][0]);
            store(mixed + n * width + d + 8, found[n][1]);
        }
    }
    for (; d < head_dim; ++d)
        for (int n = 0; n < N; ++n) {
            float sum = ADD ? mixed[n * width + d] : 0.0f;
            for (int i = 0; i < count; ++i) sum += weights[n * apart + i * along] * values[i * stride + d];
            mixed[n * width + d] = sum;
        }
}

}  // namespace
