"""A folder that somebody else wrote, read with suspicion: JSON in bounds, and safetensors whose header tells the truth.

Nothing here runs what it reads, follows a name out of the folder, or makes room for a tensor before the file's size has
shown that it is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import CheckpointError
from regard.weights import LONGEST_HEADER, MOST_TENSORS

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MEGABYTE = 2**20
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npz", ".h5", ".msgpack")
WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
WEIGHED = ("F32", "F16", "BF16")  # what weights come in


# ---- JSON


def read_json(path: Path, most: int = MEGABYTE) -> dict[str, Any]:
    """An object of strict JSON: no NaN, no name twice, no more than `most` bytes."""
    data = _bytes(path, most)
    try:
        found = json.loads(data, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(f"{path}: cannot be read as JSON ({reason}); restore the file") from None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path}: holds a {type(found).__name__}, but an object {{…}} is wanted; restore the file"
        )
    return found


def read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        what = f"{folder} has no {CONFIG}" if folder.is_dir() else f"{folder}: no such folder"
        raise CheckpointError(f"{what}; name a Hugging Face folder: {CONFIG}, {WEIGHTS} and the tokenizer's files")
    return read_json(inside(folder, CONFIG))


def inside(folder: Path, name: str) -> Path:
    """The file of this name in the folder. A link may lead to the blobs of a Hugging Face cache, and nowhere else."""
    path = folder / name
    if name in ("", ".", "..") or "\0" in name or Path(name).name != name or "\\" in name:
        raise CheckpointError(f"{folder} names the file {name!r}; only files of the folder itself are read")
    homes = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        homes.append(folder.resolve().parents[1] / "blobs")
    if not any(path.resolve().is_relative_to(home) for home in homes):
        raise CheckpointError(f"{path}: leads out of the folder; put the file itself there")
    return path


def _bytes(path: Path, most: int) -> bytes:
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file, or no plain one; restore it")
        if (size := path.stat().st_size) > most:
            raise CheckpointError(f"{path}: {size} bytes came, but at most {most} are read; it is no such file")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


# ---- tensors


@dataclass(frozen=True)
class Entry:
    """What a header says of a tensor, once it has been found to be true."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def read_entries(folder: Path) -> dict[str, Entry]:
    """The tensors of a folder by name, in one file or in shards that an index lists. None is loaded."""
    if (folder / WEIGHTS).exists():
        return read_header(inside(folder, WEIGHTS))
    if not (folder / INDEX).exists():
        _refuse(folder)
    listed = read_json(inside(folder, INDEX), 16 * MEGABYTE).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise CheckpointError(f'{folder / INDEX}: "weight_map" must name a file for each tensor; restore the file')
    entries: dict[str, Entry] = {}
    for shard in sorted(set(listed.values())):
        held = read_header(inside(folder, shard))
        wanted = {name for name, file in listed.items() if file == shard}
        if odd := sorted(wanted ^ held.keys()):
            raise CheckpointError(f"{folder / shard}: its tensors are not those of {INDEX} ({odd[0]!r}); restore them")
        entries |= held
    return entries


def read_header(path: Path) -> dict[str, Entry]:
    """Names, types and shapes of a safetensors file, after every byte of it has been accounted for."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file; restore it")
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LONGEST_HEADER):
                raise _lying(path, "it is cut short, or no safetensors file")
            data = file.read(length)
        found = json.loads(data, object_pairs_hook=_once, parse_constant=_no_number)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _lying(path, "its header is no JSON") from None
    if not isinstance(found, dict) or len(found) > MOST_TENSORS:
        raise _lying(path, f"its header is no table of at most {MOST_TENSORS} tensors")
    found.pop("__metadata__", None)
    places = sorted(_place(path, name, said) for name, said in found.items())
    end = 0
    for begin, stop, name in places:
        if begin != end:
            raise _lying(path, f"its tensors overlap or leave gaps at {name!r}")
        end = stop
    if 8 + length + end != size:
        raise _lying(path, f"its header promises {8 + length + end} bytes, but it has {size}")
    return {name: Entry(path, said["dtype"], tuple(said["shape"])) for name, said in found.items()}


def load(entries: Mapping[str, Entry], names: Iterable[str]) -> dict[str, Tensor]:
    """Some of the tensors, as float32."""
    found = {}
    for name in names:
        if (dtype := entries[name].dtype) not in WEIGHED:
            what = f"{entries[name].file}: {name!r} is {dtype}, but weights are read as {', '.join(WEIGHED)}"
            raise CheckpointError(f"{what}; convert it with the program that wrote it")
    for path in sorted({entries[name].file for name in names}):
        try:
            with safe_open(path, "pt") as file:
                for name in names:
                    if entries[name].file == path:
                        found[name] = file.get_tensor(name).to(torch.float32)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read as safetensors: {error}") from None
    return found


def _place(path: Path, name: str, said: Any) -> tuple[int, int, str]:
    """Where a tensor lies, if type and shape ask for just so many bytes."""
    try:
        shape, (begin, end), width = said["shape"], said["data_offsets"], WIDTHS[said["dtype"]]
        numbers = [*shape, begin, end]
        if len(shape) > 8 or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise _lying(path, f"what it says of {name!r} is no type, shape and place") from None
    if end - begin != math.prod(shape) * width:
        raise _lying(path, f"{name!r} is {said['dtype']} {shape}, which is not {end - begin} bytes")
    return begin, end, name


def _lying(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be believed: {why}; fetch it again")


def _refuse(folder: Path) -> None:
    """There are no safetensors; maybe something that looks like weights."""
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLES:
            what = f"{folder} has {path.name} and no {WEIGHTS}: such a file can run code as it is opened"
            way = f'transformers.AutoModel.from_pretrained("{folder}").save_pretrained("{folder}-safe")'
            raise CheckpointError(f"{what}, and Regard reads safetensors alone; where you trust it, convert it: {way}")
    raise CheckpointError(f"{folder} has no {WEIGHTS}; fetch it, or name the folder that has it")
