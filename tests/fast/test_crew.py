"""A crew shares out whatever it is given, each share once, among threads that are there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.fast import Writer, build
from regard.models.transformer import Config, Transformer

DRIVER = """
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include "crew.h"

Team team = nullptr;
typedef std::atomic<int> Count;

// Of each share somebody has to be at work before anybody goes on.
bool all_at_once(int hands) {
    Crew crew(hands);
    std::vector<std::thread> others;
    for (int i = 1; i < hands; ++i) others.emplace_back([&crew, i] { crew.help(i, true); });
    Count present{0}, shares{0};
    while (shares < hands) {  // a helper that is not there yet is not waited for
        present = shares = 0;
        crew.each(100, 1L << 40, [&](int from, int to, int) {
            ++present;
            for (long spins = 0; present < hands && spins < 100000000 / hands; ++spins) std::this_thread::yield();
            if (present == hands && to > from) ++shares;
        });
    }
    crew.dismiss();
    for (std::thread& other : others) other.join();
    return true;
}

// Every one of so many things is done once, whatever its cost.
bool all_once() {
    bool right = true;
    right &= crewed_out(2, 2, 6, [&](int, int, Crew& crew) {
        for (int round = 0; round < 4000; ++round) {
            std::vector<Count> times(1 + round % 90);
            std::vector<Count> members(HANDS);
            crew.each(times.size(), (round % 7) * 40000L, [&](int from, int to, int member) {
                ++members[member];
                for (int i = from; i < to; ++i) ++times[i];
            });
            for (Count& count : times) right &= count == 1;
            for (Count& count : members) right &= count <= 1;
        }
    });
    return right;
}

bool failing() {
    return !crewed_out(1, 1, 2, [](int, int, Crew& crew) {
        crew.each(8, 1L << 40, [](int, int, int) {});
        throw std::runtime_error("");
    });
}

bool no_more_than_processors() {
    bool right = true;
    crewed_out(1, 1, 1000, [&](int, int, Crew& crew) {
        right &= crew.size() == std::min(HANDS, processors());
        crewed_out(1, 1, 1000, [&](int, int, Crew& inner) { right &= inner.size() <= std::max(1, processors() / 2); });
    });
    return right;
}

bool untouched() {
#ifdef __linux__
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof before, &before);
    std::thread([&] {
        leave(processor());
        sched_getaffinity(0, sizeof after, &after);
    }).join();
    return CPU_EQUAL(&before, &after);
#endif
    return true;
}

int main() {
    const bool right[] = {all_at_once(2), all_at_once(3), all_once(),
                          failing(), no_more_than_processors(), untouched()};
    for (bool one : right) printf("%d", one);
    return 0;
}
"""


def test_each_share_is_done_once_by_somebody_who_is_there(tmp_path: Path) -> None:
    try:
        words = build.compiler()
    except build.Unbuilt as error:
        pytest.skip(str(error))
    (tmp_path / "driver.cpp").write_text(DRIVER)
    flags = [*build.FLAGS, "-pthread", f"-I{build.NATIVE}", *(["-DX86"] if build.X86 else [])]
    subprocess.run([*words, *flags, str(tmp_path / "driver.cpp"), "-o", str(tmp_path / "driver")], check=True)
    assert subprocess.check_output([str(tmp_path / "driver")], timeout=60) == b"111111"


@pytest.mark.usefixtures("accelerator")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two threads want two processors")
def test_a_search_that_fails_lets_its_threads_go() -> None:
    """In a process of its own, which would never end."""
    code = """
import torch
from regard.fast import Writer
from regard.models.transformer import Config, Transformer
model = Transformer(Config(vocab=300, dim=128, heads=4, layers=2, hidden=512)).eval()
with torch.no_grad():
    model.head.weight.fill_(float("nan"))
torch.set_num_threads(2)
prompt = torch.ones(1, 1, dtype=torch.long)
assert Writer(model, whole=False)(torch.full((1, 9), 5), None, prompt, eos=2, limit=8) is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="where processors can be chosen")
def test_which_processors_a_thread_may_use_stays_as_it_was() -> None:
    model = Transformer(Config(vocab=300, dim=128, heads=4, layers=2, hidden=512)).eval()
    writer, dice = Writer(model, whole=True), random.Random(0)
    source, prompt = torch.randint(4, 300, (1, 12)), torch.ones(1, 1, dtype=torch.long)
    threads = {int(name): os.sched_getaffinity(int(name)) for name in os.listdir("/proc/self/task")}
    own = os.sched_getaffinity(0)
    torch.set_num_threads(2)
    try:
        for _ in range(40):
            os.sched_setaffinity(0, {dice.choice(sorted(own))} if dice.random() < 0.5 else own)
            wanted = os.sched_getaffinity(0)
            writer(source, None, prompt, eos=2, limit=8, shortest=8)
            assert os.sched_getaffinity(0) == wanted
    finally:
        os.sched_setaffinity(0, own)
        torch.set_num_threads(1)
    for thread, before in threads.items():
        if os.path.exists(f"/proc/self/task/{thread}"):
            assert os.sched_getaffinity(thread) == before
