"""The comparisons that want a GPU, in at most eight minutes: what is compiled is compiled for all of them at once, then
each has the machine to itself, for so many seconds at most, as long as there are any left. What takes longer is left to
those who ask for it by name (`python -m bench.decode`, `bench.pretrain`, `bench.recurrent`, `bench.tcn`,
`bench.train_translation`): the lines that it had in the tables stay there.

    python -m bench.gpu                  # all
    python -m bench.gpu decode watch     # some
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch

from bench.harness import refuse_others

FILLED = ("train_translation", "pretrain", "decode")  # whose compiled kernels are kept by --fill
FILL = 150  # seconds at most
SECONDS = {"decode": 130, "pretrain": 70, "recurrent": 60, "watch": 40, "train_translation": 180}  # the longest last
ALL = 475  # seconds that there are
PARTS = {  # of more
    "decode": ("xl-1", "124m-1", "base-64-4"),
    "pretrain": ("gpt2",),
    "recurrent": ("bf16",),
    "train_translation": ("one-shape",),  # peers for any shape are compiled for three minutes
}
COMPILING = 8  # at once: engines of those that are filled


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [*SECONDS])
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here; make bench runs what a CPU can")
    names = [name for name in SECONDS if not asked or name in asked]
    begun = time.monotonic()
    os.environ.setdefault("BENCH_LOAD", str(os.getloadavg()[0]))  # before we make some ourselves
    fill([name for name in names if name in FILLED])
    print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)
    late = [name for name in names if not run(name, begun + ALL - time.monotonic())]
    print(f"{time.monotonic() - begun:.0f} s in all" + (f"; not finished: {', '.join(late)}" if late else ""))
    sys.exit(1 if late else 0)


def fill(names: Sequence[str]) -> None:
    with ExitStack() as stack:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // COMPILING)))
        work = [stack.enter_context(started([*command(name), "--fill"])) for name in names]
        until = time.monotonic() + FILL
        for process in work:
            with suppress(subprocess.TimeoutExpired):  # what is in the cache by then is used all the same
                process.wait(max(0.0, until - time.monotonic()))


def command(name: str) -> list[str]:
    return [sys.executable, "-m", f"bench.{name}", *PARTS.get(name, ())]


def run(name: str, left: float) -> bool:
    """Whether it came to its end in time. What was measured until then is in results/."""
    begun = time.monotonic()
    with started(command(name)) as process:
        try:
            ended = process.wait(max(0.0, min(left, SECONDS[name]))) == 0
        except subprocess.TimeoutExpired:
            ended = False
    print(f"{name}: {time.monotonic() - begun:.0f} s" + ("" if ended else ", not finished"), flush=True)
    return ended


@contextmanager
def started(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a session of its own, so that whatever it has started ends with it: compilers that went on
    would slow the next race down."""
    with subprocess.Popen(words, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # nobody is left
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
