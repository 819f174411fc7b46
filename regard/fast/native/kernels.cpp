#include "kernels.h"
#include "vectors.h"

// Those with tiles are the ones for VNNI, but for products of bytes. A compiler of which more is wanted may know VNNI
// in other files, too.
#define vnni_has_tiles 1
#if defined(TILES) && OWN(has_tiles)
#define WITH_TILES
#include "tiles.h"
#endif

namespace {

// ---- products

// Some vectors at a time, and one panel of W, stay in registers: R rows of two of the widest vectors.
#ifdef __AVX512F__
constexpr int FLOAT_ROWS = 8;
#else
constexpr int FLOAT_ROWS = 6;  // of sixteen registers four are left, and three are needed
#endif

template <int R>
void rows_of_floats(const float* panel, int wide, const float* x, long stride, Wide (&y)[R][2]) {
    Wide total[R][2] = {};
    for (int k = 0; k < wide; ++k, panel += COLUMNS) {
        const Wide left = load_wide(panel), right = load_wide(panel + LANES);
        for (int r = 0; r < R; ++r) {
            const Wide number = all<Wide>(x[r * stride + k]);
            total[r][0] = fused(number, left, total[r][0]);
            total[r][1] = fused(number, right, total[r][1]);
        }
    }
    memcpy(y, total, sizeof total);
}

// Sums of whole numbers, which are exact: 255 * 127 * wide stays below 2^31.
#if defined(__AVX512VNNI__)

constexpr int MOST = 127;
constexpr int BYTE_ROWS = 8;

inline WideInts add_bytes(WideInts sum, int32_t four, const int8_t* panel) {
    return (WideInts)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(four), _mm512_loadu_si512(panel));
}

#elif defined(__AVX2__)

constexpr int MOST = 64;      // the sum of two products is made in 16 bits: 2 * 255 * 64 is below 2^15
constexpr int BYTE_ROWS = 4;  // their sums, and what they are made of, fill the registers

inline WideInts add_bytes(WideInts sum, int32_t four, const int8_t* panel) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(four), _mm256_loadu_si256((const __m256i*)panel));
    return (WideInts)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#else

constexpr int MOST = 127;
constexpr int BYTE_ROWS = 4;

#endif

template <int R>
void rows_of_bytes(const int8_t* panel, int deep, const uint8_t* x, WideInts (&y)[R][2]) {
#ifdef __AVX2__
    WideInts total[R][2] = {};
    for (int k = 0; k < deep; k += STEP, panel += COLUMNS * STEP)
        for (int r = 0; r < R; ++r) {
            int32_t four;
            memcpy(&four, x + (long)r * deep + k, STEP);
            total[r][0] = add_bytes(total[r][0], four, panel);
            total[r][1] = add_bytes(total[r][1], four, panel + LANES * STEP);
        }
#else
    int32_t total[R][COLUMNS] = {};  // a compiler makes many numbers of an array at a time, of a vector one by one
    for (int k = 0; k < deep; k += STEP, panel += COLUMNS * STEP)
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < COLUMNS; ++j)
                for (int i = 0; i < STEP; ++i) total[r][j] += x[(long)r * deep + k + i] * panel[j * STEP + i];
#endif
    memcpy(y, total, sizeof total);
}

inline void put(float* to, int room, Wide left, Wide right) {
    if (room >= COLUMNS) {
        store_wide(to, left);
        store_wide(to + LANES, right);
        return;
    }
    float both[COLUMNS];
    store_wide(both, left);
    store_wide(both + LANES, right);
    memcpy(to, both, room * sizeof(float));
}

// What sums of whole numbers are worth, of the outputs from `at` on.
struct Worth {
    Wide scale;
    WideInts all_bytes;

    Worth(const Matrix& m, int at) : scale(load_wide(m.scales + at)), all_bytes(load_ints(m.sums + at)) {}

    Wide of(WideInts sums, const Vectors& v, int row) const {
        const Wide exact = __builtin_convertvector(sums - all_bytes * v.zeros[row], Wide);
        return exact * (scale * v.scales[row]);
    }
};

template <int R>
void some_rows(const Matrix& m, const Vectors& v, int row, int panel, float* y, long stride) {
    Wide found[R][2];
    const int at = panel * COLUMNS;
    if (m.bytes) {
        WideInts sums[R][2];
        rows_of_bytes<R>(m.bytes + (long)panel * m.deep * COLUMNS, m.deep, v.bytes + (long)row * m.deep, sums);
        for (int half = 0; half < 2; ++half) {
            const Worth worth(m, at + LANES * half);
            for (int r = 0; r < R; ++r) found[r][half] = worth.of(sums[r][half], v, row + r);
        }
    } else {
        rows_of_floats<R>(m.floats + (long)panel * m.wide * COLUMNS, m.wide, v.floats + row * v.stride, v.stride, found);
    }
    const Wide left = load_wide(m.bias + at), right = load_wide(m.bias + at + LANES);
    for (int r = 0; r < R; ++r) put(y + r * stride, m.tall - at, found[r][0] + left, found[r][1] + right);
}

template <int R>
void rest_of_rows(const Matrix& m, const Vectors& v, int row, int panel, float* y, long stride) {
    if (v.count - row == R) return some_rows<R>(m, v, row, panel, y, stride);
    if constexpr (R > 1) rest_of_rows<R - 1>(m, v, row, panel, y, stride);
}

template <int R>
void product_of(const Matrix& m, const Vectors& v, int from, int to, float* y, long stride) {
    for (int panel = from; panel < to; ++panel, y += COLUMNS) {
        int row = 0;
        for (; row + R <= v.count; row += R) some_rows<R>(m, v, row, panel, y + row * stride, stride);
        rest_of_rows<R - 1>(m, v, row, panel, y + row * stride, stride);
    }
}

void product(const Matrix& m, const Vectors& v, int from, int to, float* y, long stride) {
    return m.bytes ? product_of<BYTE_ROWS>(m, v, from, to, y, stride) : product_of<FLOAT_ROWS>(m, v, from, to, y, stride);
}

#ifdef WITH_TILES
// Of fewer vectors a tile would be mostly empty, and they wait for the matrix in any case.
constexpr int TILED = 4;

// The sums of one tile of vectors, the first of which is `row`, become outputs.
void tile_of_rows(const Matrix& m, const Vectors& v, int row, int some, int at, const Sums (&sums)[2], float* y, long stride) {
    const Worth left(m, at), right(m, at + LANES);
    const Wide left_bias = load_wide(m.bias + at), right_bias = load_wide(m.bias + at + LANES);
    for (int r = 0; r < some; ++r)
        put(y + (row + r) * stride, m.tall - at, left.of(load_ints(sums[0] + r * TILE), v, row + r) + left_bias,
            right.of(load_ints(sums[1] + r * TILE), v, row + r) + right_bias);
}

// Where the vectors are no multiple of a tile, the last one reaches back, and some outputs are made again.
void product_in_tiles(const Matrix& m, const Vectors& v, int from, int to, float* y, long stride) {
    if (!m.bytes || v.count < TILED) return product(m, v, from, to, y, stride);
    const int some = v.count < TILE ? v.count : TILE, last = v.count - some;
    const Tiles tiles(some);
    alignas(64) Sums sums[2][2];
    for (int panel = from; panel < to; ++panel, y += COLUMNS) {
        const int8_t* bytes = m.bytes + (long)panel * m.deep * COLUMNS;
        for (int row = 0; row < v.count; row += 2 * some) {
            const int first = row < last ? row : last, second = row + some < last ? row + some : last;
            const uint8_t *one = v.bytes + (long)first * m.deep, *other = v.bytes + (long)second * m.deep;
            if (first == second) {
                tile_sums<0>(bytes, m.deep, one, other, sums);
            } else {
                tile_sums<1>(bytes, m.deep, one, other, sums);
                tile_of_rows(m, v, second, some, panel * COLUMNS, sums[1], y, stride);
            }
            tile_of_rows(m, v, first, some, panel * COLUMNS, sums[0], y, stride);
        }
    }
}
#endif

inline void store_bytes(uint8_t* to, WideInts v) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)to, _mm512_cvtusepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
    const __m128i low = _mm256_castsi256_si128((__m256i)v), high = _mm256_extracti128_si256((__m256i)v, 1);
    const __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64((__m128i*)to, _mm_packus_epi16(words, words));
#else
    for (int i = 0; i < LANES; ++i) to[i] = (uint8_t)v[i];
#endif
}

// Each vector by itself: all from its least number to its largest are 0 to 255. No other vector has a say in that.
// Among whole numbers there is no NaN and no infinity: one of them makes the scale NaN, and so all that comes of it.
void quantise(const Matrix& m, Vectors& v) {
    const int wide = m.wide, even = wide / LANES * LANES;
    for (int row = 0; row < v.count; ++row) {
        const float* x = v.floats + row * v.stride;
        uint8_t* q = v.bytes + (long)row * m.deep;
        Wide tops{}, depths{}, nothing{};
        for (int k = 0; k < even; k += LANES) {
            const Wide number = load_wide(x + k);
            tops = larger(tops, number);
            depths = larger(depths, -number);
            nothing += number - number;  // zero of whatever is finite, else NaN
        }
        float top = largest_of(tops), depth = largest_of(depths), range = sum_of(nothing);
        for (int k = even; k < wide; ++k) {
            top = x[k] > top ? x[k] : top;
            depth = -x[k] > depth ? -x[k] : depth;
            range += x[k] - x[k];
        }
        range += top + depth;
        const float one = range > LEAST ? 255.0f / range : 0.0f;
        const float zero = one > 0 ? (depth * one + MAGIC) - MAGIC : 0.0f;
        v.scales[row] = range / 255.0f;
        v.zeros[row] = (int32_t)zero;
        for (int k = 0; k < even; k += LANES) {
            const Wide whole = -larger(-(((load_wide(x + k) * one + MAGIC) - MAGIC) + zero), all<Wide>(-255.0f));
            store_bytes(q + k, __builtin_convertvector(whole, WideInts));
        }
        for (int k = even; k < wide; ++k) {
            const float whole = ((x[k] * one + MAGIC) - MAGIC) + zero;
            q[k] = (uint8_t)(whole < 255.0f ? whole : 255.0f);
        }
        for (int k = wide; k < m.deep; ++k) q[k] = 0;
    }
}

// ---- what stands between the products

void norm(float* x, int count, int dim, const float* weight, const float* bias, float epsilon, float* y) {
    const int even = dim / 8 * 8;
    for (int row = 0; row < count; ++row, x += dim, y += dim) {
        Floats sums{};
        for (int k = 0; k < even; k += 8) sums += load(x + k);
        float mean = sum_of(sums);
        for (int k = even; k < dim; ++k) mean += x[k];
        mean /= dim;
        Floats squares{};
        for (int k = 0; k < even; k += 8) {
            const Floats off = load(x + k) - mean;
            squares = fused(off, off, squares);
        }
        float spread = sum_of(squares);
        for (int k = even; k < dim; ++k) spread += (x[k] - mean) * (x[k] - mean);
        const float scale = 1.0f / sqrtf(spread / dim + epsilon);
        for (int k = 0; k < even; k += 8) {
            const Floats z = (load(x + k) - mean) * scale * load(weight + k);
            store(y + k, bias ? z + load(bias + k) : z);
        }
        for (int k = even; k < dim; ++k) y[k] = (x[k] - mean) * scale * weight[k] + (bias ? bias[k] : 0.0f);
    }
}

// erf by formula 7.1.26 of Abramowitz and Stegun; it is off by at most 1.5e-7.
template <typename V>
inline V erf_of(V x) {
    const V far = larger(x, -x), t = 1.0f / (1.0f + 0.3275911f * far);
    V p = all<V>(1.061405429f);
    for (const float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = fused(p, t, all<V>(term));
    const V y = 1.0f - p * t * exp_of(-far * far);
    return x < 0.0f ? -y : y;
}

template <typename V>
inline V activated(Activation which, V x) {
    switch (which) {
        case RELU: return larger(V{}, x);  // in this order a NaN stays one
        case GELU: return 0.5f * x * (1.0f + erf_of(x * 0.70710678f));
        case GELU_TANH: return x / (1.0f + exp_of(-1.5957691216f * (x + 0.044715f * x * x * x)));
        default: return x / (1.0f + exp_of(-x));
    }
}

template <Activation WHICH>
void activate_all(float* x, long count) {
    for (; count >= LANES; count -= LANES, x += LANES) store_wide(x, activated(WHICH, load_wide(x)));
    if (count == 0) return;
    float rest[LANES] = {};
    memcpy(rest, x, count * sizeof(float));
    store_wide(rest, activated(WHICH, load_wide(rest)));
    memcpy(x, rest, count * sizeof(float));
}

void activate(Activation which, float* x, long count) {
    switch (which) {
        case RELU: return activate_all<RELU>(x, count);
        case GELU: return activate_all<GELU>(x, count);
        case GELU_TANH: return activate_all<GELU_TANH>(x, count);
        case SILU: return activate_all<SILU>(x, count);
    }
}

void add(float* x, const float* y, long count) {
    for (long i = 0; i < count; ++i) x[i] += y[i];
}

void embed(float* x, const float* word, const float* position, float scale, int dim) {
    for (int k = 0; k < dim; ++k) x[k] = word[k] * scale + position[k];
}

// ---- attention

inline float dot(const float* a, const float* b, int dim) {
    Floats sums{}, more{};
    int k = 0;
    for (; k + 16 <= dim; k += 16) {
        sums = fused(load(a + k), load(b + k), sums);
        more = fused(load(a + k + 8), load(b + k + 8), more);
    }
    for (; k + 8 <= dim; k += 8) sums = fused(load(a + k), load(b + k), sums);
    float sum = sum_of(sums + more);
    for (; k < dim; ++k) sum += a[k] * b[k];
    return sum;
}

inline void mix(float* to, const float* value, float weight, int dim) {
    int k = 0;
    for (; k + 8 <= dim; k += 8) store(to + k, fused(load(value + k), all(weight), load(to + k)));
    for (; k < dim; ++k) to[k] += value[k] * weight;
}

// What is to be read soon is asked for ahead: the rows of a past or a memory lie apart.
constexpr int AHEAD = 4;

inline void fetch(const float* from, long count) {
    for (long k = 0; k < count; k += 16) __builtin_prefetch(from + k);
}

void look(const float* q, const float* keys, const float* values, const int* places, int count, long stride, int heads,
          int head_dim, float* scratch, float* context) {
    const long room = (count + 7) / 8 * 8, width = (long)heads * head_dim;
    const float scale = 1.0f / sqrtf((float)head_dim);
    for (int i = 0; i < count; ++i) {
        if (i + AHEAD < count) fetch(keys + places[i + AHEAD] * stride, width);
        const float* key = keys + places[i] * stride;
        for (int h = 0; h < heads; ++h) scratch[h * room + i] = scale * dot(q + h * head_dim, key + h * head_dim, head_dim);
    }
    for (int h = 0; h < heads; ++h) softmax(scratch + h * room, count);
    memset(context, 0, sizeof(float) * width);
    for (int i = 0; i < count; ++i) {
        if (i + AHEAD < count) fetch(values + places[i + AHEAD] * stride, width);
        const float* value = values + places[i] * stride;
        for (int h = 0; h < heads; ++h) mix(context + h * head_dim, value + h * head_dim, scratch[h * room + i], head_dim);
    }
}

template <int N>
void some_queries(int first, const float* q, const float* columns, const float* values, int count, long stride,
                  int head_dim, bool causal, float* scores, float* context, long width) {
    const long room = (count + 15) / 16 * 16;
    const int seen = causal ? first + N : count;
    scores_of<N>(q + first * stride, stride, columns, head_dim, room, 1.0f / sqrtf((float)head_dim), scores);
    for (int n = 0; n < N; ++n) {
        const int own = causal ? first + n + 1 : count;
        softmax(scores + n * room, own);
        for (int i = own; i < seen; ++i) scores[n * room + i] = 0.0f;
    }
    read<N>(scores, room, 1, values, stride, seen, head_dim, context + first * width, width);
}

void look_within(const float* q, const float* keys, const float* values, int count, long stride, int heads,
                 int head_dim, bool causal, float* scratch, float* context, long width) {
    const long room = (count + 15) / 16 * 16;
    float *columns = scratch, *scores = scratch + room * head_dim;
    for (int h = 0; h < heads; ++h, q += head_dim, keys += head_dim, values += head_dim, context += head_dim) {
        turn(keys, stride, count, head_dim, room, columns);
        int first = 0;
        for (; first + 4 <= count; first += 4)
            some_queries<4>(first, q, columns, values, count, stride, head_dim, causal, scores, context, width);
        for (; first < count; ++first)
            some_queries<1>(first, q, columns, values, count, stride, head_dim, causal, scores, context, width);
    }
}

// ---- words

void insert(Best& best, float logit, int word) {
    int place = best.found < best.asked ? best.found++ : best.asked - 1;
    for (; place > 0 && best.logits[place - 1] < logit; --place) {
        best.logits[place] = best.logits[place - 1];
        best.words[place] = best.words[place - 1];
    }
    best.logits[place] = logit;
    best.words[place] = word;
}

inline bool some(WideInts which) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)which, (__m512i)which);
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)which);
#else
    int found = 0;
    for (int i = 0; i < LANES; ++i) found |= which[i];
    return found;
#endif
}

// More logits of the words [first, first + count): they count in the sum, and those that may be said may be the best.
// What lies between count and the next multiple of LANES is written too.
void see(Best& best, float* logits, int first, int count, const int* banned, int bans) {
    const int full = (count + LANES - 1) / LANES * LANES;
    for (int i = count; i < full; ++i) logits[i] = -INFINITY;
    Wide tops = load_wide(logits);
    for (int i = LANES; i < full; i += LANES) tops = larger(tops, load_wide(logits + i));
    const float top = largest_of(tops);
    if (top > best.top) {
        best.sum *= expf(best.top - top);
        best.top = top;
    }
    const float less = best.top > -INFINITY ? best.top : 0.0f;  // where nothing was possible so far, the sum is zero
    Wide sums{};
    for (int i = 0; i < full; i += LANES) sums += exp_of(load_wide(logits + i) - less);
    best.sum += sum_of(sums);
    if (best.wanted >= first && best.wanted < first + count) best.wanted_logit = logits[best.wanted - first];
    for (int i = 0; i < bans; ++i)
        if (banned[i] >= first && banned[i] < first + count) logits[banned[i] - first] = -INFINITY;
    for (int i = 0; i < full; i += LANES) {
        const float least = best.found < best.asked ? -INFINITY : best.logits[best.asked - 1];
        const Wide many = load_wide(logits + i);
        if (!some(many > least)) continue;
        for (int lane = 0; lane < LANES; ++lane)
            if (best.found < best.asked ? many[lane] > -INFINITY : many[lane] > best.logits[best.asked - 1])
                insert(best, many[lane], first + i + lane);
    }
}

}  // namespace

const Kernels OWN(kernels) = {OWN(name), COLUMNS, MOST, STEP, quantise, product, norm, activate, add, embed,
                              look, look_within, see, &OWN(learning)};
#ifdef WITH_TILES
const Kernels amx_kernels = {amx_name, COLUMNS, MOST, TILE_DEEP, quantise, product_in_tiles, norm, activate, add, embed,
                             look, look_within, see, &OWN(learning)};
#endif
