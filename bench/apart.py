"""Engines in processes of their own, with one thread or with all cores, whichever is quicker at a piece of work: two
pools of threads in one process would wait for each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench.harness import LEAST, Comparison, clock, len_cores, race, threads_told

FINALISTS = 2
Run = Callable[..., Any]
Make = Callable[..., Run]  # of a number of threads and more, called in the engine's own process


class Engine:
    """Does its work whenever it is told to."""

    def __init__(self, make: Make, threads: int, *given: Any) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # a child reads it before it makes its threads
        context = get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, threads, given), daemon=True)
        self.process.start()

    def __call__(self, *asked: Any) -> Any:
        self.line.send(asked)
        return self.line.recv()

    def wait(self) -> None:
        """Until it is ready: loading what it needs, it would be in the way of others."""
        try:
            self.line.recv()
        except EOFError:
            sys.exit("an engine ended while it was getting ready; what it said stands above")


def _serve(line: Connection, make: Make, threads: int, given: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    run = make(threads, *given)
    line.send(None)
    while True:
        line.send(run(*line.recv()))


@contextmanager
def running(ways: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Engine]]:
    """An engine for each way to make one: `make`, its number of threads and more."""
    found = {way: Engine(*given) for way, given in ways.items()}
    try:
        for engine in found.values():
            engine.wait()
        yield found
    finally:
        for engine in found.values():
            engine.process.terminate()
            engine.process.join()


@contextmanager
def engines(make: Make, *given: Any) -> Iterator[dict[str, Engine]]:
    """One for each number of threads."""
    with running({threads_told(n): (make, n, *given) for n in sorted({1, len_cores()})}) as found:
        yield found


def compare(
    name: str, tokens: int, able: dict[str, dict[str, Run]], *, unit: str = "tokens/s", rounds: int = LEAST
) -> Comparison:
    """Of each engine the quickest way that it has; the first engine is ours."""
    chosen = {engine: quickest(ways) for engine, ways in able.items()}

    def counted(run: Run) -> Callable[[], float]:
        def work() -> float:
            run()
            return float(tokens)

        return work

    racing = {engine: counted(able[engine][way]) for engine, way in chosen.items()}
    found = race(name, unit, racing, rounds=rounds, warm=1)
    found.chosen = chosen
    print(name, {f"{engine}, {way}": round(found.rate(engine)) for engine, way in chosen.items()}, file=sys.stderr)
    return found


def any_of(ways: dict[str, Run]) -> Run:
    """For what is asked not for its time but for its answer."""
    return next(iter(ways.values()))


def quickest(ways: dict[str, Run], *, warm: bool = True) -> str:
    """One way alone is not tried; of others, the best two are tried again, since once may have been bad luck. Those
    that have been asked before need not be warmed."""
    if len(ways) == 1:
        return next(iter(ways))
    took = {way: _seconds(run, warm) for way, run in ways.items()}
    for way in sorted(took, key=lambda way: took[way])[:FINALISTS]:
        took[way] = min(took[way], _seconds(ways[way], warm=False))
    return min(took, key=lambda way: took[way])


def _seconds(run: Run, warm: bool) -> float:
    """At best; of what takes long, once is enough."""
    if warm:
        run()
    times: list[float] = []
    while len(times) < 3 and sum(times) < 0.5:
        before = clock()
        run()
        times.append(clock() - before)
    return min(times)
