"""The library is whole or not there, is found again, and says in one sentence why there is none."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace as Namespace

import pytest

from regard.errors import ConfigError
from regard.fast import build
from regard.fast.build import Unbuilt

COMPILER = """#!/bin/sh
test "$1" = --version && { echo 1.0; exit; }
while test "$1" != -o; do shift; done
echo made >> "$(dirname "$0")/log"
echo whole > "$2"
"""
BROKEN = """#!/bin/sh
test "$1" = --version && { echo 1.0; exit; }
echo "writer.cpp:1: error: no such luck" >&2
exit 1
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a package without a library in it, and a compiler that is quick."""
    native = tmp_path / "native"
    native.mkdir()
    for source in build.NATIVE.glob("*.[ch]*"):
        shutil.copy(source, native)
    monkeypatch.setattr(build, "NATIVE", native)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    use(COMPILER, tmp_path, monkeypatch)
    return tmp_path / "cache" / "regard"


def test_a_cache_that_would_be_another_in_each_folder_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert build._cache() == tmp_path / "home" / ".cache" / "regard"


def use(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = folder / "compiler"
    compiler.write_text(script)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))


def made(library: Path) -> str:
    """By the compiler."""
    assert build.is_whole(library)
    return library.read_bytes()[: -build.DIGEST].decode()


def compiled(folder: Path) -> int:
    return len((folder / "log").read_text().splitlines())


def test_it_is_compiled_once_and_found_again(home: Path, tmp_path: Path) -> None:
    first = build._kept(build.compiler())
    assert first.parent == home
    assert made(first) == "whole\n"
    times = compiled(tmp_path)
    assert build._kept(build.compiler()) == first
    assert compiled(tmp_path) == times


@pytest.mark.parametrize("left", [0, 5, build.DIGEST, -1])
def test_one_that_was_damaged_is_not_loaded_but_compiled_anew(
    left: int, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half a library ends the process that loads it."""
    first = build._place()
    whole, times = first.read_bytes(), compiled(tmp_path)
    first.write_bytes(whole[:left])
    assert not build.is_whole(first)
    with monkeypatch.context() as gone:
        without_a_compiler(gone)
        with pytest.raises(Unbuilt, match=r"is not as it was written, and no C\+\+ compiler was found to make it anew"):
            build._place()
        other = first.with_name(f"{first.stem}-of-another-compiler.so")
        other.write_bytes(whole)
        os.utime(other, (0, 0))
        first.with_name(f"{first.stem}-a-folder.so").mkdir()
        assert build._place() == other
    assert build._place() == first
    assert first.read_bytes() == whole
    assert compiled(tmp_path) > times


def test_another_compiler_makes_another_library(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = build._kept(build.compiler())
    use(COMPILER.replace("1.0", "2.0"), tmp_path, monkeypatch)
    assert build._kept(build.compiler()) != first
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert len({build._kept(build.compiler()), *home.iterdir()}) == 3


def test_two_at_once_do_no_harm_and_leave_nothing_behind(home: Path) -> None:
    threads = [Thread(target=build._kept, args=(build.compiler(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (only,) = home.iterdir()
    assert made(only) == "whole\n"


def test_without_a_home_it_goes_to_a_temporary_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    first = build._kept(build.compiler())
    assert first.is_relative_to(tmp_path)
    times = compiled(tmp_path)
    assert build._kept(build.compiler()) == first, "which the next process finds again"
    assert compiled(tmp_path) == times


def test_a_user_without_a_home_is_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert build._kept(build.compiler()).is_relative_to(tmp_path)


@pytest.mark.parametrize("how", ["somebody else may write there", "it is a link"])
def test_what_somebody_else_could_have_put_there_is_not_loaded(
    how: str, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    place = tmp_path / f"regard-{os.getuid()}"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    if how == "it is a link":
        place.symlink_to(theirs)
    else:
        place.mkdir()
        place.chmod(0o777)
    made = build._kept(build.compiler())
    assert made.parent not in (place, theirs)
    assert made.is_relative_to(tmp_path)


def test_nowhere_to_put_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build, "build", full)
    with pytest.raises(Unbuilt, match=r"could not be put anywhere: .*No space left on device; make room, or write"):
        build._kept(build.compiler())


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("no program at all", r"is no compiler: Exec format error; name another in CXX"),
        ("#!/bin/sh\n", r"made no library; name another compiler in CXX"),
    ],
)
def test_what_is_no_compiler_is_told_of(
    script: str, sentence: str, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(script, tmp_path, monkeypatch)
    with pytest.raises(Unbuilt, match=sentence):
        build._kept(build.compiler())


def test_a_compiler_that_is_named_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(Unbuilt, match=r"CXX names /nowhere/c\+\+, which is not there; name a C\+\+ compiler"):
        build.compiler()


def test_a_compiler_that_fails_is_told_of_and_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(BROKEN, tmp_path, monkeypatch)
    with pytest.raises(
        Unbuilt, match=r"could not compile .*: writer.cpp:1: error: no such luck; name another compiler"
    ):
        build._kept(build.compiler())
    assert not any(home.iterdir())


def test_the_packages_build_says_in_one_sentence_why_it_made_nothing() -> None:
    command = [sys.executable, "-m", "regard.fast"]
    done = subprocess.run(command, env={**os.environ, "CXX": "/nowhere/c++"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"CXX names /nowhere/c\+\+, which is not there; [^\n]*\n", done.stderr)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        Unbuilt,
        match=r"needs a C\+\+ compiler, and none was found; install g\+\+, or compile it into the package where",
    ):
        build.compiler()


@pytest.mark.parametrize("cached", [True, False])
def test_what_a_compiler_made_serves_when_it_is_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cached: bool
) -> None:
    if not cached:
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    earlier = build._place()
    use(COMPILER.replace("1.0", "2.0"), tmp_path, monkeypatch)
    later = build._place()
    assert earlier != later
    os.utime(earlier, (0, 0))
    without_a_compiler(monkeypatch)
    assert build._place() == later
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(Unbuilt, match="which is not there"):
        build._place()
    monkeypatch.setenv("CXX", "")
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    with pytest.raises(Unbuilt, match="none was found"):
        build._place()


def test_what_was_made_with_words_of_ones_own_may_not_run_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -march=native")
    build._place()
    without_a_compiler(monkeypatch)
    with pytest.raises(Unbuilt, match="none was found"):
        build._place()


def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/nowhere")


def test_a_compiler_may_have_words_of_its_own(home: Path) -> None:
    os.environ["CXX"] += " -fast"
    assert build.compiler()[1:] == ["-fast"]


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_FAST", "off")
    with pytest.raises(Unbuilt, match="REGARD_FAST=off turns the accelerator off; unset it, or write arithmetic fp32"):
        build._library.__wrapped__()


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("asked", build.HELD)
def test_it_can_be_held_to_the_kernels_of_a_lesser_processor(asked: str) -> None:
    """In a process of its own: from then on they are the best that there are."""
    if not build.library().regard_knows(build.HELD[asked]):
        pytest.skip(f"this processor has no {asked}")
    code = "from regard.fast import library; print(library().regard_processor().decode())"
    held = os.environ | {"REGARD_FAST": asked}
    assert subprocess.check_output([sys.executable, "-c", code], env=held).strip() == build.HELD[asked]


@pytest.mark.usefixtures("accelerator")
def test_what_it_cannot_be_held_to_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_FAST", "avx3 ")
    with pytest.raises(ConfigError, match="REGARD_FAST=avx3 is not known; write off, amx, vnni, avx2, plain"):
        build._library.__wrapped__()
    monkeypatch.setenv("REGARD_FAST", "avx2")
    monkeypatch.setitem(build.HELD, "avx2", b"abacus")
    able = Namespace(regard_hold=lambda name: name != b"abacus", regard_processor=lambda: b"AVX-512 VNNI")
    monkeypatch.setattr(build, "_declared", lambda found: able)
    with pytest.raises(ConfigError, match="REGARD_FAST=avx2 asks for what this processor cannot do; write vnni, or"):
        build._library.__wrapped__()


def test_what_cannot_be_loaded_is_told_of(home: Path) -> None:
    with pytest.raises(Unbuilt, match=r"cannot be loaded: .*; remove it, or write arithmetic fp32"):
        build._library.__wrapped__()


def test_what_the_packages_build_has_made_is_taken_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build.build_in()
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    monkeypatch.setattr(build, "_declared", lambda found: found)
    build._library.__wrapped__()
    assert loaded == [str(built)]
    built.write_bytes(built.read_bytes()[:-1])
    assert build._place() != built, "it was damaged"


@pytest.mark.storm
@pytest.mark.skipif(not build.X86, reason="elsewhere there is one kind of kernels")
def test_a_compiler_that_means_this_processor_alone_makes_kernels_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else it has switched on, each kind of kernels keeps its name."""
    monkeypatch.setattr(build, "FLAGS", [word.replace("-O3", "-O0") for word in build.FLAGS])
    own = ctypes.CDLL(str(build.build(tmp_path, [*build.compiler(), "-march=native"], "fast.so")))
    assert all(hasattr(own, f"{name}_kernels") for name in build.PROCESSORS)
