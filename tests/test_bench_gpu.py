"""The races that want a GPU are started one after another; what one of them leaves behind would slow the next."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from bench import decode, gpu
from bench.harness import refuse_others

HOLD = "import fcntl, sys, time; held = open(sys.argv[1], 'w'); fcntl.flock(held, 2); held.write('x'); held.flush()"
CHILD = f"{HOLD}; time.sleep(60)"
PARENT = """
import subprocess, sys, time
from pathlib import Path
subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
while not Path(sys.argv[1]).exists() or not Path(sys.argv[1]).read_text():
    time.sleep(0.01)
"""


def free(path: Path) -> bool:
    """Whether nobody holds the file, soon: who is killed may take a moment."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)
            else:
                return True
    return False


@pytest.mark.parametrize(("then", "in_time"), [("time.sleep(60)", False), ("", True)])
def test_what_a_race_has_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, in_time: bool
) -> None:
    held = tmp_path / "held"
    monkeypatch.setattr(gpu, "command", lambda name: [sys.executable, "-c", PARENT + then, str(held), CHILD])
    monkeypatch.setitem(gpu.SECONDS, "watch", 60 if in_time else 3)
    assert gpu.run("watch", 90.0) is in_time
    assert held.read_text() == "x"
    assert free(held)


def test_what_is_compiled_too_long_ends_with_all_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {name: tmp_path / name for name in gpu.FILLED}
    monkeypatch.setattr(
        gpu, "command", lambda name: [sys.executable, "-c", f"{PARENT}time.sleep(60)", str(held[name]), CHILD]
    )
    monkeypatch.setattr(gpu, "FILL", 3)
    gpu.fill(gpu.FILLED)
    for path in held.values():
        assert path.read_text() == "x"
        assert free(path)


@pytest.mark.parametrize("name", gpu.SECONDS)
def test_each_race_knows_the_words_that_it_is_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = gpu.PARTS.get(name, ())
    if name == "decode":
        assert set(given) <= {*decode.CELLS}
        return

    def stop(asked: Sequence[str], known: Sequence[str]) -> None:
        refuse_others(asked, known)
        raise InterruptedError

    race = import_module(f"bench.{name}")
    monkeypatch.setattr(race.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(race, "refuse_others", stop)
    with pytest.raises(InterruptedError):
        race.main([*given, *["--fill"] * (name in gpu.FILLED)])
