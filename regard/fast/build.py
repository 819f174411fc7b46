"""From C++ to a library that is loaded: compiled when it is first used, and kept.

A library is found by what it was made of: sources, flags and compiler; once the compiler is gone, by sources and flags
alone. It is written beside its place and moved there when it is whole, so two processes at once do no harm; and since
one that was damaged on its disk would end whoever loads it, its own digest stands behind it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ctypes import c_char_p, c_float, c_int, c_long, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path

from regard.errors import ConfigError, RegardError
from regard.fast.alone import Alone

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-O3", "-std=gnu++17", "-fPIC", "-ffp-contract=off", "-w")
PROCESSORS = {  # for each of them the kernels are compiled once more
    "plain": (),
    "avx2": ("-mavx2", "-mfma"),
    "vnni": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
}
OFF = ("off", "0", "no", "false")  # REGARD_FAST turns it off by these,
HELD = {  # and to some kernels, also to lesser ones than there are, by these
    "amx": b"AMX", "vnni": b"AVX-512 VNNI", "avx2": b"AVX2", "plain": b"plain C++",
}  # fmt: skip
X86 = platform.machine().lower() in ("x86_64", "amd64")


class Unbuilt(RegardError):
    """There is no accelerator, for this reason."""


def library() -> ctypes.CDLL:
    """The accelerator. Whoever asks for it by name is told why there is none."""
    with _alone:  # of several threads one compiles it, and the others wait for that
        return _library()


def trouble(what: str, kernels: bytes | None) -> Exception:
    """Why the native side did not do it."""
    if not library().regard_knows(kernels):
        assert kernels is not None
        return ValueError(f"this processor cannot run the kernels for {kernels.decode()}; leave them out")
    return MemoryError(f"no room for {what}")


_alone = Alone()
DIGEST = sha256().digest_size


@cache
def _library() -> ctypes.CDLL:
    asked = os.environ.get("REGARD_FAST", "").strip().lower()
    if asked in OFF:
        raise Unbuilt("REGARD_FAST=off turns the accelerator off; unset it, or write arithmetic fp32")
    if asked and asked not in HELD:
        raise ConfigError(f"REGARD_FAST={asked} is not known; write off, {', '.join(HELD)}, or unset it")
    place = _place()
    try:
        found = _declared(ctypes.CDLL(str(place)))
    except (OSError, AttributeError) as error:
        raise Unbuilt(f"{place} cannot be loaded: {error}; remove it, or write arithmetic fp32") from None
    if asked and not found.regard_hold(HELD[asked]):
        best = next(name for name, kernels in HELD.items() if kernels == found.regard_processor())
        raise ConfigError(f"REGARD_FAST={asked} asks for what this processor cannot do; write {best}, or unset it")
    return found


def _place() -> Path:
    """Where it is: with the package, or in the cache, or there by now."""
    found = NATIVE / f"{_stem()}.so"
    if is_whole(found):
        return found
    try:
        words = compiler()
    except Unbuilt:
        if os.environ.get("CXX") or (left := _left()) is None:
            raise
        return left
    return _kept(words)


def compiler() -> list[str]:
    """$CXX, or the first that is found; it may have words of its own."""
    named = os.environ.get("CXX", "").split()
    if named and not shutil.which(named[0]):
        raise Unbuilt(f"CXX names {named[0]}, which is not there; name a C++ compiler, or write arithmetic fp32")
    for words in (named, ["c++"], ["g++"], ["clang++"]):
        if words and shutil.which(words[0]):
            return words
    raise Unbuilt(
        "the accelerator needs a C++ compiler, and none was found; install g++, or compile it into the package where "
        "there is one (python -m regard.fast), or write arithmetic fp32"
    )


def build_in() -> Path:
    """Compiles it into the package itself, where every machine with such a processor finds it."""
    return build(NATIVE, compiler(), f"{_stem()}.so")


def build(folder: Path, words: list[str], name: str) -> Path:
    """Compiles all sources into folder/name."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects = [f"{scratch}/{part}.o" for part in _parts()]
        _compile(
            [*words, *flags, "-c", str(NATIVE / source), "-o", made]
            for made, (source, flags) in zip(objects, _parts().values(), strict=True)
        )
        _compile([[*words, "-shared", "-pthread", *objects, "-o", f"{scratch}/whole.so"]])
        if not Path(f"{scratch}/whole.so").exists():
            raise Unbuilt(f"{words[0]} made no library; name another compiler in CXX, or write arithmetic fp32")
        with open(f"{scratch}/whole.so", "r+b") as file:
            file.write(sha256(file.read()).digest())  # behind the rest, where no loader looks
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{scratch}/whole.so", folder / name)
    return folder / name


def is_whole(place: Path) -> bool:
    """It is there, and as it was written."""
    try:
        made = place.read_bytes()
    except OSError:
        return False
    return made[-DIGEST:] == sha256(made[:-DIGEST]).digest()


def _compile(commands: Iterable[list[str]]) -> None:
    """All at once."""
    running = [(words[0], _begun(words)) for words in commands]
    told = [(name, work.communicate()[1], work.returncode) for name, work in running]
    for name, text, code in told:
        if code:
            trouble = next((line for line in text.splitlines() if "error" in line), f"it ended with {code}")
            what = f"{name} could not compile the accelerator: {trouble}"
            raise Unbuilt(f"{what}; name another compiler in CXX, or write arithmetic fp32")


def _begun(words: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        what = f"{words[0]} is no compiler: {error.strerror}"
        raise Unbuilt(f"{what}; name another in CXX, or write arithmetic fp32") from None


def _parts() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Object files, with the source and the flags of each."""
    flags = (*FLAGS, "-pthread", *(("-DX86",) if X86 else ()))
    parts = {part: (f"{part}.cpp", flags) for part in ("matrix", "reader", "writer", "teacher")}
    for name, more in PROCESSORS.items():
        if X86 or not more:
            own = (*flags, *more, f"-DPROCESSOR={name}")
            parts |= {f"{part}-{name}": (f"{part}.cpp", own) for part in ("kernels", "learning")}
    return parts


def _kept(words: list[str]) -> Path:
    """The library in the cache, or in the temporary folder where there is no home that can be written."""
    version = _begun([*words, "--version"]).communicate()[0]
    name = f"{_stem(words[1:])}-{_digest((words[0], version))}.so"
    trouble = ""
    for home in (_cache, _own_temporary, lambda: Path(tempfile.mkdtemp(prefix="regard-"))):
        try:
            folder = home()
            return folder / name if is_whole(folder / name) else build(folder, words, name)
        except (OSError, RuntimeError) as error:  # no home, or none that can be written
            trouble = trouble or str(error)
    raise Unbuilt(f"the accelerator could not be put anywhere: {trouble}; make room, or write arithmetic fp32")


def _left() -> Path | None:
    """What a compiler that is gone has left in the cache, the latest first; it had no words of its own."""
    damaged = None
    for home in (_cache, _own_temporary):
        try:
            found = sorted(home().glob(f"{_stem()}-*.so"), key=lambda path: path.stat().st_mtime)
        except (OSError, RuntimeError):
            continue
        whole = [path for path in found if is_whole(path)]
        if whole:
            return whole[-1]
        damaged = found[-1] if found else damaged
    if damaged is not None:
        what = f"{damaged} is not as it was written, and no C++ compiler was found to make it anew"
        raise Unbuilt(f"{what}; install g++, or write arithmetic fp32")
    return None


def _cache() -> Path:
    """A relative one would be another in each folder that one stands in; it does not count, as XDG says."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path("~/.cache").expanduser()) / "regard"


def _own_temporary() -> Path:
    """One for all processes of this user. What somebody else could write is not loaded."""
    folder = Path(tempfile.gettempdir()) / f"regard-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not ours alone")
    return folder


def _stem(words: Sequence[str] = ()) -> str:
    """The beginning of its name, of sources and flags; a compiler may have some of its own."""
    sources = [path.read_bytes() for path in sorted(NATIVE.glob("*.[ch]*"))]
    return "fast-" + _digest((sources, FLAGS, tuple(words), PROCESSORS, platform.machine()))


def _digest(what: object) -> str:
    return sha256(repr(what).encode()).hexdigest()[:16]


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    for name, result, arguments in (
        ("regard_processor", c_char_p, []),
        ("regard_knows", c_int, [c_char_p]),
        ("regard_hold", c_int, [c_char_p]),
        ("regard_team", None, [c_void_p]),
        ("regard_matrix", c_void_p, [c_void_p, c_void_p, c_int, c_int, c_int, c_char_p]),
        ("regard_forget", None, [c_void_p]),
        ("regard_product", c_int, [c_void_p, c_void_p, c_int, c_void_p]),
        ("regard_read", c_int, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_int]),
        ("regard_search", c_int, [c_void_p, c_void_p, c_void_p, c_int, c_int]),
        (
            "regard_multiply",
            c_int,
            [c_char_p, c_void_p, c_int, c_void_p, c_int, c_int, c_void_p, c_void_p, c_long, c_int, c_int],
        ),
        ("regard_lose", c_int, [c_char_p, c_void_p, c_int, c_int, c_void_p, c_float, c_void_p, c_void_p, c_int]),
        ("regard_look", c_int, [c_char_p, c_void_p, c_void_p, c_void_p, c_int]),
        ("regard_unlook", c_int, [c_char_p, *[c_void_p] * 6, c_int]),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    found.regard_team(_team())
    os.register_at_fork(after_in_child=lambda: found.regard_team(None))  # a child has none of the pool's threads
    return found


def _team() -> c_void_p | None:
    """The pool of threads that PyTorch has, where it is OpenMP's and can be found by name."""
    with suppress(OSError, AttributeError):
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, c_void_p)
    return None
