// Work in several threads, and memory for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

// Memory that is not written before it is used: what an answer does not need costs nothing. It begins with a line of the
// cache, so that no vector of what stands in panels lies across two.
constexpr size_t LINE = 64;
struct Free {
    void operator()(void* at) const { std::free(at); }
};
template <typename T>
using Held = std::unique_ptr<T[], Free>;
template <typename T>
Held<T> held(size_t count) {
    void* at = std::aligned_alloc(LINE, (count * sizeof(T) / LINE + 2) * LINE);
    if (!at) throw std::bad_alloc();
    return Held<T>(static_cast<T*>(at));
}

using Buffer = Held<float>;
inline Buffer buffer(size_t count) { return held<float>(count); }

// GOMP_parallel of the pool of threads that PyTorch has. Such a pool waits for its next work by spinning, some
// milliseconds long: threads of another would find their cores taken. Where there is none, threads are made.
typedef void (*Team)(void (*work)(void*), void* given, unsigned threads, unsigned flags);
extern Team team;

// work() in as many threads, or in fewer where no more are to be had.
template <typename Work>
void together(int threads, Work work) {
    if (team && threads > 1) return team([](void* given) { (*(Work*)given)(); }, &work, threads, 0);
    std::vector<std::thread> others;
    try {
        while ((int)others.size() + 1 < threads) others.emplace_back(work);
    } catch (const std::system_error&) {
    }
    work();
    for (std::thread& other : others) other.join();
}

// work(from, to) on equal shares of [0, count), each in a thread of its own. False: some of it could not be done, as
// where there was not memory enough.
template <typename Work>
bool shared_out(int count, int threads, Work work) {
    std::atomic<bool> done{true};
    std::atomic<int> next{0};
    together(threads, [&] {
        for (int i; (i = next++) < threads;) {
            try {
                work(count * (long)i / threads, count * (i + 1L) / threads);
            } catch (const std::exception&) {
                done = false;
            }
        }
    });
    return done;
}
