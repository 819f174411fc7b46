"""Blocks compiled in place, and how many graphs that took."""

from __future__ import annotations

import torch
from torch import nn

from regard.core.autoregressive import Autoregressive
from regard.core.block import Block
from regard.core.head import Head
from regard.errors import ConfigError

GRAPHS = 64  # of one function: blocks of encoder and decoder, masks of each kind, sizes that are fixed and that are not


def compile_in_place(model: nn.Module, backend: str = "inductor") -> None:
    """Block by block, and the head: one graph serves all blocks of a kind, so that compiling takes seconds, where the
    whole model takes minutes. What differs from batch to batch is found out by the second or third. Parameters keep
    their names.
    """
    parts = [part for part in model.modules() if isinstance(part, Block | Head)]
    if not any(isinstance(part, Block) for part in parts):
        raise ConfigError("train.compile: this system has no blocks that could be compiled; leave it out")
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, GRAPHS)  # beyond it a block would run as it is, unsaid
    for part in parts:
        part.compile(backend=backend)
    if isinstance(model, Autoregressive):
        model.along = None  # a graph wants shapes that do not depend on the data


def graphs() -> int:
    """Compiled so far in this process."""
    from torch._dynamo.utils import counters  # which takes seconds to import

    return int(counters["stats"]["unique_graphs"])
