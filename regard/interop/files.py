"""A folder that somebody else wrote, read with suspicion: JSON in bounds, and safetensors whose header tells the truth.

Nothing here runs what it reads, follows a name out of the folder, or makes room for a tensor before the file's size has
shown that it is there.
"""

from __future__ import annotations

import json
import math
import os
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
GENERATION = "generation_config.json"
MEGABYTE = 2**20
MOST_SHARDS, MOST_DIGITS, DEEPEST = 1000, 100, 32  # digits: int(1e30) stands for a length without limit
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npz", ".h5", ".msgpack")
WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
WEIGHED = ("F32", "F16", "BF16")  # what weights come in


# ---- JSON


def read_json(path: Path, most: int = MEGABYTE) -> dict[str, Any]:
    """An object of strict JSON: no NaN, no name twice, no half characters, not deep, no more than `most` bytes."""
    data = _bytes(path, most)
    try:
        found = _strict(data)
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); restore the file") from None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path}: holds a {type(found).__name__}, but an object {{…}} is wanted; restore the file"
        )
    return found


def read_config(folder: Path) -> dict[str, Any]:
    try:
        there, known = (folder / CONFIG).is_file(), folder.is_dir()
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None
    if not there:
        what = f"{folder} has no {CONFIG}" if known else f"{folder}: no such folder"
        raise CheckpointError(f"{what}; name a Hugging Face folder: {CONFIG}, {WEIGHTS} and the tokenizer's files")
    return read_json(inside(folder, CONFIG))


def inside(folder: Path, name: str) -> Path:
    """The file of this name in the folder. A link may lead to the blobs of a Hugging Face cache, and nowhere else."""
    path = folder / name
    if name in ("", ".", "..") or not name.isprintable() or Path(name).name != name or "\\" in name:
        raise CheckpointError(f"{folder} names the file {shown(name)}; only files of the folder itself are read")
    homes = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        homes.append(folder.resolve().parents[1] / "blobs")
    try:
        home = path.resolve()
    except (OSError, RuntimeError):  # links in a circle
        home = Path("/")
    if not any(home.is_relative_to(one) for one in homes):
        raise CheckpointError(f"{path}: leads out of the folder; put the file itself there")
    return path


def shown(value: Any) -> str:
    """What came, for a sentence; whoever wrote it may have written a book."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _bytes(path: Path, most: int) -> bytes:
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file, or no plain one; restore it")
        if (size := path.stat().st_size) > most:
            raise CheckpointError(f"{path}: {size} bytes came, but at most {most} are read; it is no such file")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None


def _strict(data: bytes) -> Any:
    try:
        found = json.loads(data, object_pairs_hook=_once, parse_constant=_no_number, parse_int=_whole)
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()  # half a character has no bytes
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _deeper(found, DEEPEST):
        raise ValueError("it is nested too deeply")
    return found


def _deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 0 or _deeper(one, levels - 1) for one in inside if isinstance(one, dict | list))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has more than {MOST_DIGITS} digits")
    return int(digits)


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
    shards: dict[str, set[str]] = {}
    for name, shard in listed.items():
        shards.setdefault(shard, set()).add(name)
    if len(shards) > MOST_SHARDS:
        raise CheckpointError(f"{folder / INDEX}: names {len(shards)} files, but at most {MOST_SHARDS} are read")
    entries: dict[str, Entry] = {}
    for shard, wanted in sorted(shards.items()):
        held = read_header(inside(folder, shard))
        if odd := sorted(wanted ^ held.keys()):
            what = f"{folder / shard}: its tensors are not those of {INDEX} ({shown(odd[0])})"
            raise CheckpointError(f"{what}; restore them")
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
        found = _strict(data)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise _lying(path, "its header is no JSON") from None
    if not isinstance(found, dict) or len(found) > MOST_TENSORS:
        raise _lying(path, f"its header is no table of at most {MOST_TENSORS} tensors")
    told = found.pop("__metadata__", {})
    if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
        raise _lying(path, "what it says of itself is no table of texts")
    places = sorted(_place(path, name, said) for name, said in found.items())
    end = 0
    for begin, stop, name in places:
        if begin != end:
            raise _lying(path, f"its tensors overlap or leave gaps at {shown(name)}")
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
    _check_room(sum(4 * math.prod(entries[name].shape) for name in names))
    for path in sorted({entries[name].file for name in names}):
        try:
            with safe_open(path, "pt") as file:
                for name in names:
                    if entries[name].file == path:
                        found[name] = _numbers(file.get_tensor(name), path, name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read as safetensors: {error}") from None
    return found


def _numbers(tensor: Tensor, path: Path, name: str) -> Tensor:
    if not tensor.isfinite().all():
        what = "no number (NaN)" if tensor.isnan().any() else "infinite"
        raise CheckpointError(f"{path}: {name!r} holds what is {what}; fetch it again, or train it anew")
    return tensor.to(torch.float32)


def _check_room(size: int) -> None:
    """A disk can hold, or seem to hold, more than the machine."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > room:
        what = f"its weights fill {size >> 30} GB, but this machine has {room >> 30} GB of memory"
        raise CheckpointError(f"{what}; use a larger one")


def _place(path: Path, name: str, said: Any) -> tuple[int, int, str]:
    """Where a tensor lies, if type and shape ask for just so many bytes."""
    try:
        shape, (begin, end), width = said["shape"], said["data_offsets"], WIDTHS[said["dtype"]]
        numbers = [*shape, begin, end]
        if len(said) > 3 or len(shape) > 8 or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise _lying(path, f"what it says of {shown(name)} is no type, shape and place") from None
    if end - begin != math.prod(shape) * width:
        raise _lying(path, f"{shown(name)} is {said['dtype']} {shape}, which is not {end - begin} bytes")
    return begin, end, name


def _lying(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be believed: {why}; fetch it again")


def _refuse(folder: Path) -> None:
    """There are no safetensors; maybe something that looks like weights."""
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLES:
            what = f"{folder} has {shown(path.name)[1:-1]} and no {WEIGHTS}: such a file can run code as it is opened"
            way = f'transformers.AutoModel.from_pretrained("{folder}").save_pretrained("{folder}-safe")'
            raise CheckpointError(f"{what}, and Regard reads safetensors alone; where you trust it, convert it: {way}")
    raise CheckpointError(f"{folder} has no {WEIGHTS}; fetch it, or name the folder that has it")
