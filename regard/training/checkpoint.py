"""Checkpoints: folders that are whole, or not there.

    checkpoints/step-00001234/   model.safetensors   optimizer.safetensors   rng.safetensors   carry.safetensors
                                 state.json          manifest.json (size and SHA-256 of each file)

A checkpoint is written beside (.tmp-…), read back, and only then renamed. One that does not match its manifest is set
aside (.corrupt-…), and the one before it is taken. Which is the newest is computed, never noted. Nothing is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.disk import to_disk, write_through
from regard.errors import CheckpointError
from regard.weights import Corrupt, Tensors, decode, encode

FORMAT = 1
SPARE = 2**20  # bytes that a checkpoint leaves free, for the log and all that is small
TENSOR_FILES = ("model", "optimizer", "rng", "carry")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Snapshot:
    """A run at rest: tensors by file and name, and everything else as JSON."""

    state: dict[str, Any]
    tensors: dict[str, Tensors]


def save(home: Path, snapshot: Snapshot) -> Path:
    """Writes `home`/step-…; an OSError leaves what was there before as it was."""
    step = snapshot.state["step"]
    home.mkdir(parents=True, exist_ok=True)
    _need_room(home, sum(t.nbytes for tensors in snapshot.tensors.values() for t in tensors.values()))
    beside = _unused(home / f".tmp-{step:08d}-{os.getpid()}")
    try:
        beside.mkdir()
        files = {}
        for name, data in _encoded(snapshot):
            files[name] = _entry(data)
            write_through(beside / name, data)
        manifest = {"format": FORMAT, "files": files, "seal": _seal(FORMAT, files)}
        write_through(beside / "manifest.json", json.dumps(manifest, indent=1).encode())
        to_disk(beside)
        _read_back(beside)
        return _publish(beside, path_of(home, step))
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def read(path: Path) -> Snapshot:
    """The checkpoint, if every byte is as its manifest says."""
    files = dict(_contents(path))
    try:
        state = json.loads(files["state.json"])
        tensors = {name: decode(files[f"{name}.safetensors"], path) for name in TENSOR_FILES}
        if state["step"] == step_of(path):
            return Snapshot(state, tensors)
    except (ValueError, LookupError, TypeError) as error:
        raise Corrupt(f"{path}: not a whole checkpoint: {error!r}") from None
    raise Corrupt(f"{path}: it is of step {state['step']}")


def restore(home: Path, accept: Callable[[Snapshot], None], say: Say) -> Path | None:
    """Hands the newest good checkpoint to `accept`, and sets corrupt ones aside; None where there never was one."""
    for path in reversed(found(home)):
        try:
            accept(read(path))
            return path
        except Corrupt as error:
            set_aside(path, error, say)
    if any(home.glob(".corrupt-*")):
        what = f"{home}: every checkpoint is corrupt and was set aside"
        raise CheckpointError(f"{what}; put a good copy back, or train into a new folder")
    return None


def set_aside(path: Path, error: Corrupt, say: Say) -> None:
    aside = _unused(path.with_name(f".corrupt-{path.name}"))
    os.rename(path, aside)
    say(f"{error}; it was set aside as {aside.name}")


def found(home: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted((path for path in home.glob("step-*") if re.fullmatch(r"step-\d+", path.name)), key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def path_of(home: Path, step: int) -> Path:
    return home / f"step-{step:08d}"


def discard(paths: Sequence[Path]) -> None:
    """A folder that is being deleted must not look like a checkpoint, so it is renamed first."""
    for path in paths:
        gone = _unused(path.with_name(f".tmp-{step_of(path):08d}-{os.getpid()}"))
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def tidy(home: Path) -> None:
    """Removes what dead processes left half done."""
    for path in home.glob(".tmp-*"):
        owner = re.match(r"\.tmp-\d+-(\d+)", path.name)
        if owner and (int(owner[1]) == os.getpid() or not _alive(int(owner[1]))):
            shutil.rmtree(path, ignore_errors=True)
    for path in home.glob(".old-*"):
        whole = home / path.name.removeprefix(".old-")
        if whole.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.rename(path, whole)


def average(folders: Sequence[Path]) -> Tensors:
    """The mean of the weights of several checkpoints, summed in float64; whole numbers are those of the last."""
    sums: Tensors = {}
    for folder in folders:
        tensors = read(folder).tensors["model"]
        if sums and sums.keys() != tensors.keys():
            raise CheckpointError(f"{folder}: other weights than in {folders[0].name}; average checkpoints of one run")
        for name, tensor in tensors.items():
            sums[name] = sums.get(name, 0) + tensor.double() if tensor.is_floating_point() else tensor
    if not sums:
        raise CheckpointError("no checkpoint to average; keep at least one")
    means = {name: total / len(folders) if total.is_floating_point() else total for name, total in sums.items()}
    return {name: mean.to(tensors[name].dtype) for name, mean in means.items()}


# ---- how it is done


def _encoded(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    for name in TENSOR_FILES:
        yield f"{name}.safetensors", encode(snapshot.tensors[name])
    yield "state.json", json.dumps(snapshot.state, indent=1).encode()


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Each file with its bytes, checked against the manifest."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        version, files = manifest["format"], manifest["files"]
        sealed = manifest["seal"] == _seal(version, files)
    except (OSError, ValueError, KeyError, TypeError):
        raise Corrupt(f"{path}: manifest.json is missing or unreadable") from None
    if not sealed:
        raise Corrupt(f"{path}: manifest.json is not what was written")
    if version != FORMAT:
        what = f"{path}: format {version}, but this version of Regard reads format {FORMAT}"
        raise CheckpointError(f"{what}; use the version that wrote it")
    for name, entry in files.items():
        try:
            data = (path / name).read_bytes()
        except OSError as error:
            raise Corrupt(f"{path}: {name} cannot be read: {error.strerror}") from None
        if _entry(data) != entry:
            raise Corrupt(f"{path}: {name} is not what was written")
        yield name, data


def _entry(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _seal(version: int, files: Mapping[str, Any]) -> str:
    """The manifest vouches for the files; this vouches for the manifest."""
    return hashlib.sha256(json.dumps([version, files], sort_keys=True).encode()).hexdigest()


def _read_back(path: Path) -> None:
    try:
        for _ in _contents(path):
            pass
    except Corrupt as error:
        raise OSError(errno.EIO, f"what was written does not read back ({error})") from None


def _publish(beside: Path, final: Path) -> Path:
    """Renames into place. One of the same step steps aside first; `tidy` brings it back if we die in between."""
    old = final.with_name(f".old-{final.name}")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(final, old)
    os.rename(beside, final)
    to_disk(final.parent)
    shutil.rmtree(old, ignore_errors=True)
    return final


def _need_room(home: Path, size: int) -> None:
    free, need = shutil.disk_usage(home).free, size + SPARE
    if free < need:
        unit, name = (1000, "kB") if need < 10**7 else (10**6, "MB")
        told = f"{math.ceil(need / unit):,} {name} needed, {free // unit:,} {name} free"
        raise OSError(errno.ENOSPC, f"No space left on device: {told}")


def _unused(path: Path) -> Path:
    """The path, or the first of path.2, path.3, … that is not taken."""
    names = (path if i == 1 else path.with_name(f"{path.name}.{i}") for i in range(1, 10_000))
    return next(name for name in names if not name.exists())


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it lives, and is somebody else's
    return True
