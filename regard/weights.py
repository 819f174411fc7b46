"""Weights by name, and on disk: one safetensors file, checked before it is believed. No pickle is ever read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from regard.disk import write
from regard.errors import CheckpointError

Tensors = dict[str, Tensor]

LONGEST_HEADER, MOST_TENSORS = 10_000_000, 50_000  # far above any model of ours, far below what could exhaust a machine
TOLD = "__metadata__"  # where the header of a safetensors file says what is no tensor
POSITIONS = "positions.table.weight"  # how the names of tables end that have a row for each position


class Corrupt(CheckpointError):
    """What is on disk is not what was written."""


# ---- a model's weights


def weights(model: nn.Module) -> Tensors:
    """Parameters and buffers by name; what is tied goes by the first of its names."""
    return {names[0]: tensor.detach() for tensor, names in _tensors(model)}


def put_weights(model: nn.Module, given: Mapping[str, Tensor]) -> None:
    """Copies into the model what `weights` took from it. Everything is checked before anything is changed."""
    wanted = _tensors(model)
    strange = set(given) - {name for _, names in wanted for name in names}
    if strange:
        raise CheckpointError(f"the weights hold {min(strange)!r}, which the model lacks; they are of another model")
    pairs = []
    for tensor, names in wanted:
        name = next((name for name in names if name in given), None)
        if name is None:
            raise CheckpointError(f"the weights lack {names[0]!r}, which the model has; they are of another model")
        if given[name].shape != tensor.shape or given[name].dtype != tensor.dtype:
            what = f"the weights hold {name!r} as {form(given[name])}, but the model wants {form(tensor)}"
            raise CheckpointError(f"{what}; they are of another model")
        pairs.append((tensor, given[name]))
    with torch.no_grad():
        for tensor, value in pairs:
            tensor.copy_(value)


def _tensors(model: nn.Module) -> list[tuple[Tensor, list[str]]]:
    """Each tensor of the model once, with all of its names."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return list(found.values())


def form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


# ---- files of weights


def save_weights(path: Path, model: nn.Module, about: Mapping[str, str] | None = None) -> None:
    """One file that loads anywhere; equal weights give equal bytes. `about` is what else its header is to say."""
    data = encode(weights(model))
    write(path, _telling(data, about) if about else data)


def _telling(data: bytes, about: Mapping[str, str]) -> bytes:
    """With more in its header, in one order: safetensors would write it in any."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header[TOLD] |= about
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]


def told(path: Path) -> dict[str, str]:
    """What the header of a file says besides its tensors; nothing where it cannot be read, which is told elsewhere."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            about = json.loads(file.read(min(length, LONGEST_HEADER)))[TOLD]
        return {name: value for name, value in about.items() if isinstance(value, str)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def read_weights(path: Path, model: nn.Module) -> None:
    """Into a model of just these names, shapes and types."""
    try:
        put_weights(model, load_weights(path))
    except CheckpointError as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def begin_with(path: Path, model: nn.Module) -> list[str]:
    """Into a model that was built for something else: all weights of equal name and shape; the first rows of those
    with a row for each word, where the vocabulary has grown, and of those with a row for each position. Gives the names
    of those that begin fresh, whole or from some row on.
    """
    found, wanted = load_weights(path), weights(model)
    fresh: list[str] = []
    grown: list[str] = []
    vocab = len(found["words.weight"]) if "words.weight" in found else 0
    with torch.no_grad():
        for name, tensor in wanted.items():
            old = found.get(name)
            if old is not None and old.shape == tensor.shape:
                tensor.copy_(old)
            elif (
                old is not None
                and old.shape[1:] == tensor.shape[1:]
                and (len(old) == vocab < len(tensor) or name.endswith(POSITIONS))
            ):
                rows = min(len(old), len(tensor))
                tensor[:rows].copy_(old[:rows])
                if rows < len(tensor):
                    grown.append(f"{name} from row {rows} on")
            else:
                fresh.append(name)
    if len(fresh) == len(wanted):
        raise CheckpointError(
            f"{path}: none of its weights fits the model; begin with a run of the same system and width"
        )
    return [*fresh, *grown]


def load_weights(path: Path) -> Tensors:
    """The tensors of a safetensors file, by name."""
    if path.is_dir():
        kind = "a torch.distributed checkpoint, which holds a pickle" if (path / ".metadata").exists() else "a folder"
        raise CheckpointError(f"{path}: is {kind}; give a .safetensors file")
    try:
        return decode(path.read_bytes(), path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; give a .safetensors file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(on_cpu, {"format": "pt"})


def decode(data: bytes, path: Path) -> Tensors:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, LONGEST_HEADER):
        raise Corrupt(f"{path}: not a safetensors file, or cut short; Regard loads safetensors and never pickles")
    try:
        if len(json.loads(data[8 : 8 + length])) > MOST_TENSORS:
            raise ValueError(f"it names more than {MOST_TENSORS} tensors")
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{path}: its safetensors header is wrong: {error}") from None
