// Matrices in the layout of a processor's kernels, and which kernels those are.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "sharing.h"

#ifdef TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

const Kernels* held_to = nullptr;  // what it may be held to: a race or a test asks for a lesser processor's

#ifdef TILES
// The processor has them, and the system lets this process use them: it keeps more of a thread that does.
bool tiles_allowed() {
    constexpr unsigned FOR_BYTES = 3u << 24;
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & FOR_BYTES) == FOR_BYTES &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

// All that this processor can run, the best one last.
std::vector<const Kernels*> able() {
    std::vector<const Kernels*> found{&plain_kernels};
#ifdef X86
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return found;
    found.push_back(&avx2_kernels);
    if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw"))
        return found;
    found.push_back(&vnni_kernels);
#ifdef TILES
    if (tiles_allowed()) found.push_back(&amx_kernels);
#endif
#endif
    return found;
}

}  // namespace

const Kernels* kernels_named(const char* name) {
    static const std::vector<const Kernels*> all = able();
    const Kernels* best = held_to ? held_to : all.back();
    if (!name) return best;
    for (const Kernels* one : all) {
        if (strcmp(name, one->name) == 0) return one;
        if (one == best) break;
    }
    return nullptr;
}

namespace {

template <typename T>
T* zeros(size_t count) {
    Held<T> found = held<T>(count);
    std::fill_n(found.get(), count, T());
    return found.release();
}

// W (tall, wide), as it is or in whole numbers.
void lay_out(Matrix* m, const float* weight, const float* bias, bool whole) {
    const int tall = m->tall, wide = m->wide, deep = m->deep, panel = m->by->panel, panels = m->panels;
    m->bias = zeros<float>(panels * panel);
    if (bias) std::copy_n(bias, tall, m->bias);
    if (!whole) {
        m->floats = zeros<float>((size_t)panels * wide * panel);
        for (int row = 0; row < tall; ++row) {
            float* to = m->floats + (size_t)(row / panel) * wide * panel + row % panel;
            for (int k = 0; k < wide; ++k) to[(size_t)k * panel] = weight[(size_t)row * wide + k];
        }
        return;
    }
    m->bytes = zeros<int8_t>((size_t)panels * deep * panel);
    m->scales = zeros<float>(panels * panel);
    m->sums = zeros<int32_t>(panels * panel);
    for (int row = 0; row < tall; ++row) {
        const float* w = weight + (size_t)row * wide;
        float top = 0, nothing = 0;
        for (int k = 0; k < wide; ++k) {
            top = std::max(top, std::fabs(w[k]));
            nothing += w[k] - w[k];  // as in quantise
        }
        const float one = top + nothing > LEAST ? m->by->most / top : 0.0f;
        int8_t* to = m->bytes + (size_t)(row / panel) * deep * panel + (row % panel) * STEP;
        for (int k = 0; k < wide; ++k) {
            const int8_t byte = (int8_t)std::lrintf(w[k] * one);
            to[(size_t)(k / STEP) * panel * STEP + k % STEP] = byte;
            m->sums[row] += byte;
        }
        m->scales[row] = (top + nothing) / m->by->most;
    }
}

}  // namespace

// ---- what Python calls

extern "C" {

const char* regard_processor() { return kernels_named(nullptr)->name; }

// Whether there are kernels of this name for this processor.
int regard_knows(const char* kernels) { return kernels_named(kernels) != nullptr; }

// From now on those of this name are the best. False: there are none.
int regard_hold(const char* kernels) { return (held_to = kernels_named(kernels)) != nullptr; }

void regard_forget(Matrix* m) {
    for (void* part : {(void*)m->floats, (void*)m->bytes, (void*)m->scales, (void*)m->sums, (void*)m->bias}) std::free(part);
    delete m;
}

// W (tall, wide) in the layout of these kernels, or of the best.
Matrix* regard_matrix(const float* weight, const float* bias, int tall, int wide, int whole, const char* kernels) {
    const Kernels* by = kernels_named(kernels);
    Matrix* m = nullptr;
    const bool enough = by && shared_out(1, 1, [&](int, int) {
        const int deep = (wide + by->step - 1) / by->step * by->step, panels = (tall + by->panel - 1) / by->panel;
        m = new Matrix{by, tall, wide, deep, panels, nullptr, nullptr, nullptr, nullptr, nullptr};
        lay_out(m, weight, bias, whole);
    });
    if (m && !enough) regard_forget(m);
    return enough ? m : nullptr;
}

// y = Wx + b for `count` vectors. In one thread: whoever calls has threads of its own, and they would be in the way.
int regard_product(const Matrix* m, const float* x, int count, float* y) {
    return shared_out(1, 1, [=](int, int) {
        const Buffer scales = buffer(TOKENS);
        const Held<int32_t> nothings = held<int32_t>(TOKENS);
        const Held<uint8_t> bytes = held<uint8_t>(m->bytes ? (size_t)TOKENS * m->deep : 0);
        for (int row = 0; row < count; row += TOKENS) {
            Vectors v{x + (size_t)row * m->wide, m->wide, bytes.get(), scales.get(), nothings.get(),
                      std::min(TOKENS, count - row)};
            if (m->bytes) m->by->quantise(*m, v);
            m->by->product(*m, v, 0, m->panels, y + (size_t)row * m->tall, m->tall);
        }
    });
}

}
