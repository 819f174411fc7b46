"""Where the work is done."""

from __future__ import annotations

import torch

from regard.errors import ConfigError


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    if name not in ("cpu", *gpus, *(["cuda"] if gpus else [])):
        raise ConfigError(f"device: no device {name!r} here; write auto or one of {', '.join(['cpu', *gpus])}")
    return torch.device(name)
