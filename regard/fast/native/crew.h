// Several threads at one thing: a vector and a matrix are too little work for threads that have to be woken.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

#include "sharing.h"

#ifdef X86
#include <immintrin.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

// Which processor this thread runs on; -1: nobody knows.
inline int processor() {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

// How many there are for this thread.
inline int processors() {
#ifdef __linux__
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) == 0) return CPU_COUNT(&own);
#endif
    return std::max(1u, std::thread::hardware_concurrency());
}

// To another processor, where there is one for this thread. A system that wakes two threads may put them on one, and
// leave them there for long, since neither of them seems to wait; one that sleeps meanwhile wakes up there again. Which
// processors it may use stays as it was, also where somebody has just said otherwise.
inline void leave(int taken) {
#ifdef __linux__
    cpu_set_t before, others, now;
    if (processor() != taken || sched_getaffinity(0, sizeof before, &before) != 0) return;
    others = before;
    CPU_CLR(taken, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
    if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &others)) sched_setaffinity(0, sizeof before, &before);
#endif
}

// Waits by spinning for what comes within microseconds, and lets others run when it takes longer.
class Patience {
    static constexpr int MOST = 4000;
    int spins = 0;

public:
    bool lost() const { return spins == MOST; }

    void wait() {
        if (lost()) return std::this_thread::yield();
        ++spins;
#ifdef X86
        _mm_pause();
#endif
    }
};

typedef std::function<void()> Meanwhile;  // what the caller has to see to while others are at work; it is quickly done

constexpr int HANDS = 8;  // of a crew at most: each more is one more to wait for; measured with two

// One thread leads, and shares out piece after piece; each of the others waits for its share of the next one. A share
// is the same part of a matrix each time, so that it stays near the same processor. Where another thread is not there
// in time, since the machine has other things to do, the leader does its share, too.
class Crew {
    typedef uint64_t Round;  // counted, with the number of shares in its lowest bits
    typedef void (*Job)(const void* work, int from, int to, int member);
    static constexpr Round MOST = 16, OVER = ~Round(0);
    static_assert(HANDS < MOST);

    struct alignas(LINE) Member {
        std::atomic<Round> taken{0}, done{0};
    };

    alignas(LINE) std::atomic<Round> asked{0};
    Round last = 0;
    Job job = nullptr;
    const void* work = nullptr;
    int count = 0;
    std::atomic<int> leads;  // the leader's processor
    std::vector<Member> members;

public:
    explicit Crew(int threads) : leads(processor()), members(threads) {}

    int size() const { return members.size(); }

    // work(from, to, member) on equal shares of [0, count), if that is worth it: `cost` is counted in multiplications.
    template <typename Work>
    void each(int count, long cost, const Work& work) {
        const int shares = std::min<long>({size(), count, 1 + cost / WORTH});
        if (shares <= 1) return work(0, count, 0);
        this->count = count;
        this->work = &work;
        job = [](const void* work, int from, int to, int member) { (*(const Work*)work)(from, to, member); };
        leads.store(processor(), std::memory_order_relaxed);
        last += MOST;
        const Round round = last + shares;
        asked.store(round, std::memory_order_release);
        run(0, shares);
        for (int i = 1; i < shares; ++i)
            if (take(i, round)) {
                run(i, shares);
                members[i].done.store(round, std::memory_order_relaxed);
            }
        for (int i = 1; i < shares; ++i)
            for (Patience patience; members[i].done.load(std::memory_order_acquire) != round;) patience.wait();
    }

    // The others may go.
    void dismiss() { asked.store(OVER, std::memory_order_release); }

    // What they do until then, and `meanwhile` now and then. A leader who comes here when his own work is done may be
    // one too many.
    void help(int member, bool movable, const Meanwhile& meanwhile = {}) {
        if (member >= size()) return;
        for (Round round = 0;;) {
            if (movable) leave(leads.load(std::memory_order_relaxed));
            if (meanwhile) meanwhile();
            Round now;
            for (Patience patience; (now = asked.load(std::memory_order_acquire)) == round; patience.wait())
                if (patience.lost()) {
                    if (movable) leave(leads.load(std::memory_order_relaxed));
                    if (meanwhile) meanwhile();
                }
            if (now == OVER) return;
            round = now;
            const int shares = round % MOST;
            if (member < shares && take(member, round)) {
                run(member, shares);
                members[member].done.store(round, std::memory_order_release);
            }
        }
    }

private:
    static constexpr long WORTH = 1 << 16;  // multiplications that outweigh the waiting

    void run(int member, int shares) {
        job(work, count * (long)member / shares, count * (member + 1L) / shares, member);
    }

    // Whoever is first has it. A round is not over before all of its shares are, so that who comes late takes nothing.
    bool take(int member, Round round) {
        Round before = members[member].taken.load(std::memory_order_relaxed);
        return before < round &&
               members[member].taken.compare_exchange_strong(before, round, std::memory_order_acq_rel);
    }
};

// Calls that are at work now.
inline std::atomic<int>& at_work() {
    static std::atomic<int> calls{0};
    return calls;
}

struct AtWork {
    const int calls = ++at_work();
    ~AtWork() { --at_work(); }
};

// As shared_out, with a crew for each share: work(from, to, crew). Whoever calls while others are at work has so much
// less of the processors, and there is no crew that is larger than its part of them. His own thread leads, and while
// others are still at work it sees to what he has `meanwhile`.
template <typename Work>
bool crewed_out(int count, int shares, int threads, Work work, const Meanwhile& meanwhile = {}) {
    const AtWork here;
    const int hands = std::clamp(std::min(threads, processors() / here.calls) / shares, 1, HANDS);
    const std::thread::id own = std::this_thread::get_id();
    std::atomic<bool> done{true};
    std::atomic<int> next{1}, left{shares};
    std::vector<std::unique_ptr<Crew>> crews;
    for (int i = 0; i < shares; ++i) crews.emplace_back(new Crew(hands));
    together(shares * hands, [&] {
        const bool caller = std::this_thread::get_id() == own;
        int i = caller ? 0 : (int)next++;
        for (; i < shares; i = next++) {
            try {
                work(count * (long)i / shares, count * (i + 1L) / shares, *crews[i]);
            } catch (const std::exception&) {
                done = false;
            }
            crews[i]->dismiss();
            --left;
        }
        crews[i % shares]->help(i / shares, !caller, caller ? meanwhile : Meanwhile());
        while (caller && meanwhile && left) {
            meanwhile();
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    });
    return done;
}
