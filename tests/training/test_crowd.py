"""Others on the same cores are told of, once, and only where they are in the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regard.training import crowd
from regard.training.crowd import LEAST, Crowd, Used


def told(others: float, *, threads: int, cores: int, ours: float = 1.0, seconds: float = 2 * LEAST) -> list[str]:
    """What is said in four looks, each so many seconds after the last."""
    return [*_words(Crowd(threads, cores, _looks(others, ours, seconds)))]


def _looks(others: float, ours: float, seconds: float) -> Callable[[], Used]:
    moments = (i * seconds for i in range(9))
    return lambda: (lambda t: Used(t, t * (others + ours), t * ours))(next(moments))


def _words(asked: Crowd) -> Iterator[str]:
    for _ in range(4):
        yield asked.word()


def test_others_on_our_cores_are_told_of_once() -> None:
    first, *rest = told(1.0, threads=2, cores=2)
    assert first == (
        "warning: others use 1.0 of the 2 cores, and this trains with 2 threads, which wait for one another; "
        "stop the others, or write train.threads = 1"
    )
    assert rest == ["", "", ""]


@pytest.mark.parametrize(
    ("others", "threads", "cores"),
    [(0.1, 2, 2), (1.0, 1, 2), (1.0, 2, 4), (3.0, 1, 2)],
    ids=["hardly any", "one thread waits for nobody", "room for all", "one thread in a crowd"],
)
def test_where_nobody_is_in_the_way_nothing_is_said(others: float, threads: int, cores: int) -> None:
    assert told(others, threads=threads, cores=cores) == [""] * 4


def test_as_many_threads_are_advised_as_there_is_room_for() -> None:
    assert "train.threads = 5" in told(2.5, threads=8, cores=8)[0]


def test_more_threads_than_cores_are_told_of_at_once() -> None:
    first, *rest = told(0.0, threads=8, cores=2, seconds=LEAST / 10)
    assert first == (
        "warning: this trains with 8 threads on 2 cores, which wait for one another; write train.threads = 2"
    )
    assert rest == ["", "", ""]


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1), ("max 100000", None), ("90000000 100000", None)])
def test_a_container_has_the_cores_that_it_is_given(
    quota: str, cores: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    before = crowd.allowed()
    monkeypatch.setattr(crowd, "QUOTA", tmp_path / "cpu.max")
    assert crowd.allowed() == (cores or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else before)


def test_a_moment_is_too_short_to_judge_by() -> None:
    assert told(2.0, threads=2, cores=2, seconds=LEAST / 10) == [""] * 4


def test_where_the_system_does_not_tell_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(crowd, "STAT", tmp_path / "stat")
    assert [*_words(Crowd(2, 2))] == [""] * 4


@pytest.mark.skipif(not crowd.STAT.exists(), reason="this system does not tell what all its cores do")
def test_our_own_work_is_not_that_of_others() -> None:
    before = crowd.used()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    after = crowd.used()
    assert before is not None
    assert after is not None
    assert after.by_us - before.by_us >= 0.25
    assert after.by_all - before.by_all >= after.by_us - before.by_us - 0.1  # counted in hundredths of a second
