"""Where the work is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.errors import ConfigError


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one. A GPU that is named by its number becomes the
    current one of this thread, where kernels begin and graphs are recorded."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    if name not in ("cpu", *gpus, *(["cuda"] if gpus else [])):
        raise ConfigError(f"device: no device {name!r} here; write auto or one of {', '.join(['cpu', *gpus])}")
    device = torch.device(name)
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def is_current(device: torch.device) -> bool:
    """On any other GPU than the current one of its thread, a graph would be recorded empty."""
    return device.type != "cuda" or device.index is None or device.index == torch.cuda.current_device()


def record_graph(act: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """All kernels of `act` as one graph, in a pool of memory that graphs share."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    untouched = generator.clone_state()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            act()
    except BaseException:  # what fails half-way leaves stream and generator as if it still went on
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(untouched)
        raise
    return graph


def rehearse(act: Callable[[], None]) -> None:
    """Once, beside the stream that is recorded later, so that whatever is made at the first time has been made."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        act()
    torch.cuda.current_stream().wait_stream(side)
