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

// work(from, to) on equal shares of [0, count), each in a thread of its own. False: some of it could not be done, as
// where there was not memory enough.
template <typename Work>
bool shared_out(int count, int threads, Work work) {
    std::atomic<bool> done{true};
    std::atomic<int> next{0};
    auto shares = [&] {  // however many threads there are
        for (int i; (i = next++) < threads;) {
            try {
                work(count * (long)i / threads, count * (i + 1L) / threads);
            } catch (const std::exception&) {
                done = false;
            }
        }
    };
    std::vector<std::thread> others;
    if (team && threads > 1) {
        team([](void* given) { (*(decltype(shares)*)given)(); }, &shares, threads, 0);
        return done;
    }
    try {
        while ((int)others.size() + 1 < threads) others.emplace_back(shares);
    } catch (const std::system_error&) {  // no more threads are to be had
    }
    shares();
    for (std::thread& other : others) other.join();
    return done;
}
