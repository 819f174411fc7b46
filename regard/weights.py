"""Weights on disk: safetensors, checked before they are believed. No pickle is ever read."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.errors import CheckpointError


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and lasting buffers by name; tied ones once, under their first name."""
    seen: dict[int, str] = {}
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen[id(tensor)] = name
            found[name] = tensor.detach()
    return found


def write_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Written beside, then renamed: a file of this name is always whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, beside, metadata={"format": "pt"})
    with open(beside, "rb") as file:
        os.fsync(file.fileno())
    os.replace(beside, path)


def read_weights(path: Path, model: nn.Module) -> None:
    """Into a model of just these names and shapes."""
    own = named_tensors(model)
    try:
        with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
            names = set(file.keys())
            _check_names(path, names, set(own))
            for name, tensor in own.items():
                shape = tuple(file.get_slice(name).get_shape())
                if shape != tuple(tensor.shape):
                    raise CheckpointError(f"{path}: {name} has shape {shape}, but this model wants {tuple(tensor.shape)}; the recipe belongs to another run")
                with torch.no_grad():
                    tensor.copy_(file.get_tensor(name))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); copy it again, or go back to an older checkpoint") from None


def _check_names(path: Path, found: set[str], wanted: set[str]) -> None:
    if lacking := sorted(wanted - found):
        raise CheckpointError(f"{path}: lacks {lacking[0]} and {len(lacking) - 1} more tensors that this model wants; the recipe belongs to another run")
    if foreign := sorted(found - wanted):
        raise CheckpointError(f"{path}: has {foreign[0]} and {len(foreign) - 1} more tensors that this model does not know; the recipe belongs to another run")
