#include "learning.h"
#include "vectors.h"

namespace {

inline int least(int a, int b) { return a < b ? a : b; }

// ---- products

// A tile of C stays in registers: ROWS lines of two of the widest vectors. Both sides of the product are laid out so that
// what meets at one vector stands together.
#ifdef __AVX512F__
constexpr int ROWS = 8;
#else
constexpr int ROWS = 6;
#endif

template <int R>
void tile(const float* a, const float* b, int depth, float* c, long stride, int columns, const float* begin, bool add) {
    Wide total[R][2];
    for (int r = 0; r < R; ++r) {
        total[r][0] = load_wide(begin);
        total[r][1] = load_wide(begin + LANES);
        __builtin_prefetch(c + r * stride, 1);  // it was written long ago
        __builtin_prefetch(c + r * stride + COLUMNS - 1, 1);
    }
    for (int k = 0; k < depth; ++k, a += ROWS, b += COLUMNS) {
        const Wide left = load_wide(b), right = load_wide(b + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Wide number = all<Wide>(a[r]);
            total[r][0] = fused(number, left, total[r][0]);
            total[r][1] = fused(number, right, total[r][1]);
        }
    }
    for (int r = 0; r < R; ++r, c += stride) {
        float line[COLUMNS] = {};
        float* to = columns == COLUMNS ? c : line;
        if (to == line && add) memcpy(line, c, columns * sizeof(float));
        if (add) {
            total[r][0] += load_wide(to);
            total[r][1] += load_wide(to + LANES);
        }
        store_wide(to, total[r][0]);
        store_wide(to + LANES, total[r][1]);
        if (to == line) memcpy(c, line, columns * sizeof(float));
    }
}

template <int R>
void rest_of_tile(int rows, const float* a, const float* b, int depth, float* c, long stride, int columns,
                  const float* begin, bool add) {
    if (rows == R) return tile<R>(a, b, depth, c, stride, columns, begin, add);
    if constexpr (R > 1) rest_of_tile<R - 1>(rows, a, b, depth, c, stride, columns, begin, add);
}

// Vectors [first, first + depth), of `count` numbers from `at` on, as panels of WIDTH numbers: (count / WIDTH, depth,
// WIDTH), zero behind the last.
template <int WIDTH>
void panels(const Side& side, int first, int depth, int at, int count, float* to) {
    const float* x = side.at + (side.turned ? at * side.stride + first : first * side.stride + at);
    const int even = count / WIDTH * WIDTH;
    for (int k = 0; !side.turned && k < depth; ++k, x += side.stride, to += WIDTH) {
        float* line = to;
        for (int i = 0; i < even; i += WIDTH, line += (long)depth * WIDTH) memcpy(line, x + i, WIDTH * sizeof(float));
        if (even == count) continue;
        memset(line, 0, WIDTH * sizeof(float));
        memcpy(line, x + even, (count - even) * sizeof(float));
    }
    for (int i = 0; side.turned && i < count; i += WIDTH, x += WIDTH * side.stride, to += (long)depth * WIDTH) {
        const int some = least(WIDTH, count - i), eights = some / 8 * 8, full = depth / 8 * 8;
        for (int k = 0; k < full; k += 8)
            for (int j = 0; j < eights; j += 8) turn_eight(x + j * side.stride + k, side.stride, to + k * WIDTH + j, WIDTH);
        for (int k = eights == WIDTH ? full : 0; k < depth; ++k) {
            for (int j = k < full ? eights : 0; j < some; ++j) to[k * WIDTH + j] = x[j * side.stride + k];
            if (some < WIDTH) memset(to + k * WIDTH + some, 0, (WIDTH - some) * sizeof(float));
        }
    }
}

void tiles(const float* a, int m, const float* b, int n, int depth, float* c, long stride, const float* bias, bool add) {
    for (int j = 0; j < n; j += COLUMNS) {
        const int columns = least(COLUMNS, n - j);
        float begin[COLUMNS] = {};
        if (bias) memcpy(begin, bias + j, columns * sizeof(float));
        for (int i = 0; i < m; i += ROWS) {
            const float *left = a + (long)i * depth, *right = b + (long)j * depth;
            const int rows = least(ROWS, m - i);
            float* to = c + i * stride + j;
            if (rows == ROWS)
                tile<ROWS>(left, right, depth, to, stride, columns, begin, add);
            else
                rest_of_tile<ROWS - 1>(rows, left, right, depth, to, stride, columns, begin, add);
        }
    }
}

void multiply(const Side& a, int m, const Side& b, int n, int count, const float* bias, float* c, long stride, bool add,
              float* room) {
    float *down = room, *across = room + (long)DEPTH * (DOWN + ROWS);
    const int pieces = (count + DEPTH - 1) / DEPTH, depth = pieces > 1 ? (count + pieces - 1) / pieces : count;
    for (int j = 0; j < n; j += ACROSS)
        for (int k = 0; k < count || k == 0; k += depth) {
            const int some = least(depth, count - k), columns = least(ACROSS, n - j);
            panels<COLUMNS>(b, k, some, j, columns, across);
            for (int i = 0; i < m; i += DOWN) {
                const int lines = least(DOWN, m - i);
                panels<ROWS>(a, k, some, i, lines, down);
                tiles(down, lines, across, columns, some, c + i * stride + j, stride, k || !bias ? nullptr : bias + j,
                      add || k > 0);
            }
            if (count == 0) break;
        }
}

// ---- the loss of a row of logits

// With p = softmax(z): log Σ exp z - (1 - ε) z_word - ε mean(z), and its gradient p - (1 - ε) e_word - ε / count.
void lose(float* z, int count, long word, float smoothing, float* nll, float* total) {
    const int even = count / 8 * 8;
    Floats tops = all(-INFINITY), sums{};
    for (int i = 0; i < even; i += 8) {
        const Floats eight = load(z + i);
        tops = larger(tops, eight);
        sums += eight;
    }
    float top = largest_of(tops), sum = sum_of(sums);
    const float gold = z[word];
    for (int i = even; i < count; ++i) {
        top = z[i] > top ? z[i] : top;
        sum += z[i];
    }
    Floats masses{};
    for (int i = 0; i < even; i += 8) {
        const Floats raised = exp_of(load(z + i) - top);
        store(z + i, raised);
        masses += raised;
    }
    float mass = sum_of(masses);
    for (int i = even; i < count; ++i) mass += z[i] = expf(z[i] - top);
    const float each = smoothing / count, one = 1.0f / mass;
    for (int i = 0; i < even; i += 8) store(z + i, load(z + i) * one - each);
    for (int i = even; i < count; ++i) z[i] = z[i] * one - each;
    z[word] -= 1.0f - smoothing;
    const float lse = logf(mass) + top;
    *nll = lse - gold;
    *total = lse - (1.0f - smoothing) * gold - (smoothing > 0 ? each * sum : 0.0f);  // of -inf, nothing is not a number
}

// ---- attention that learns

template <int N>
struct Count {
    static constexpr int number = N;
};

// work(Count<N>, first) for all of `count`, four at a time.
template <typename Work>
inline void by_fours(int count, Work work) {
    int first = 0;
    for (; first + 4 <= count; first += 4) work(Count<4>{}, first);
    for (; first < count; ++first) work(Count<1>{}, first);
}

void look(const Heads& heads, Rows q, int queries, Rows k, Rows v, int keys, float* room, float* context, float* mass) {
    const long across = (keys + 15) / 16 * 16, width = (long)heads.count * heads.dim;
    if (keys == 0) memset(context, 0, queries * width * sizeof(float));
    float *columns = room, *weights = room + across * heads.dim;
    for (int h = 0; keys > 0 && h < heads.count; ++h) {
        const long at = (long)h * heads.dim;
        turn(k.at + at, k.stride, keys, heads.dim, across, columns);
        by_fours(queries, [&](auto some, int first) {
            constexpr int N = decltype(some)::number;
            const int seen = heads.causal ? first + N : keys;
            scores_of<N>(q.at + first * q.stride + at, q.stride, columns, heads.dim, across, heads.scale, weights);
            for (int n = 0; n < N; ++n) {
                const int own = heads.causal ? first + n + 1 : keys;
                const Mass found = softmax(weights + n * across, own);
                mass[(long)(first + n) * heads.count + h] = found.top + logf(found.sum);
                for (int i = own; i < seen; ++i) weights[n * across + i] = 0.0f;
            }
            read<N>(weights, across, 1, v.at + at, v.stride, seen, heads.dim, context + first * width + at, width);
        });
    }
}

// Weights of N queries once more, and with what the context's gradient says of them the gradients of their scores:
// dS = scale · P ∘ (dP - Σ P ∘ dP).
template <int N>
void score_gradients(const Heads& heads, int first, const float* mass, long across, int keys, float* p, float* ds) {
    for (int n = 0; n < N; ++n, p += across, ds += across) {
        const int own = heads.causal ? first + n + 1 : keys;
        const float log_mass = mass[(long)(first + n) * heads.count];
        for (long i = own; i < across; ++i) p[i] = -INFINITY;  // which is not seen
        Floats sums{};
        for (int i = 0; i < own; i += 8) {
            const Floats weight = exp_of(load(p + i) - log_mass);
            store(p + i, weight);
            sums = fused(weight, load(ds + i), sums);
        }
        for (long i = own; i < across; ++i) p[i] = 0.0f;
        const float mean = sum_of(sums);
        for (long i = 0; i < across; i += 8) store(ds + i, heads.scale * (load(p + i) * (load(ds + i) - mean)));
    }
}

void unlook(const Heads& heads, Rows q, int queries, Rows k, Rows v, int keys, const float* mass, const float* d_context,
            float* room, float* dq, float* dk, float* dv) {
    const long across = (keys + 15) / 16 * 16, width = (long)heads.count * heads.dim;
    const int dim = heads.dim;
    memset(dk, 0, keys * width * sizeof(float));
    memset(dv, 0, keys * width * sizeof(float));
    if (keys == 0) memset(dq, 0, queries * width * sizeof(float));
    float *key_columns = room, *value_columns = key_columns + across * dim;
    float *p = value_columns + across * dim, *ds = p + across * QUERIES;
    for (int h = 0; keys > 0 && h < heads.count; ++h) {
        const long at = (long)h * dim;
        turn(k.at + at, k.stride, keys, dim, across, key_columns);
        turn(v.at + at, v.stride, keys, dim, across, value_columns);
        for (int begin = 0; begin < queries; begin += QUERIES) {
            const int count = least(QUERIES, queries - begin);
            const float *asked = q.at + begin * q.stride + at, *told = d_context + begin * width + at;
            by_fours(count, [&](auto some, int first) {
                constexpr int N = decltype(some)::number;
                float *weights = p + first * across, *gradients = ds + first * across;
                scores_of<N>(asked + first * q.stride, q.stride, key_columns, dim, across, heads.scale, weights);
                scores_of<N>(told + first * width, width, value_columns, dim, across, 1.0f, gradients);
                score_gradients<N>(heads, begin + first, mass + h, across, keys, weights, gradients);
                const int seen = heads.causal ? begin + first + N : keys;
                read<N>(gradients, across, 1, k.at + at, k.stride, seen, dim, dq + (begin + first) * width + at, width);
            });
            by_fours(heads.causal ? least(keys, begin + count) : keys, [&](auto some, int first) {
                constexpr int N = decltype(some)::number;
                read<N, true>(p + first, 1, across, told, width, count, dim, dv + first * width + at, width);
                read<N, true>(ds + first, 1, across, asked, q.stride, count, dim, dk + first * width + at, width);
            });
        }
    }
}

}  // namespace

const Learning OWN(learning) = {ROWS, COLUMNS, multiply, lose, look, unlook};
