"""An encoder in one call: rows without padding go through all its blocks, some in each thread, or one text by
several threads."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from ctypes import byref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.block import Encoder
from regard.core.changes import parts_of
from regard.core.mask import Mask
from regard.fast.build import library
from regard.fast.reading import Latest, Reading, Stack, as_it_is

SHARE = 128  # tokens that are worth a thread


class Reader:
    """Reads with the weights as they are; what it cannot do (it says None) the blocks do themselves."""

    def __init__(self, encoder: Encoder, *, whole: bool) -> None:
        self.encoder, self.whole = encoder, whole
        self.latest = Latest(partial(_Blocks, encoder, whole=whole))

    def __call__(self, x: Tensor, mask: Mask) -> Tensor | None:
        """(B, T, dim) -> (B, T, dim), or packed rows (1, N, dim) likewise."""
        parts = parts_of(self.encoder)
        if not self._can(parts, x) or (lengths := _lengths(x, mask)) is None or (read := self.latest(parts)) is None:
            return None
        y = x.clone(memory_format=torch.contiguous_format)
        tokens, threads = x.shape[0] * x.shape[1], torch.get_num_threads()
        shares = max(1, min(threads, tokens // SHARE, len(lengths)))
        given = byref(read.blocks), y.data_ptr(), lengths.data_ptr(), len(lengths), shares, threads
        return y if library().regard_read(*given) else None

    def _can(self, parts: Sequence[nn.Module], x: Tensor) -> bool:
        asked = type(self.encoder) is Encoder and not torch.is_grad_enabled() and x.numel() > 0
        return asked and as_it_is(parts, x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reader:
        return Reader(deepcopy(self.encoder, memo), whole=self.whole)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Reader, whole=self.whole), (self.encoder,)


class _Blocks(Reading):
    def __init__(self, encoder: Encoder, *, whole: bool) -> None:
        super().__init__(encoder, whole=whole)
        self.blocks: Stack = self.stack(encoder, torch.nn.Identity())


def _lengths(x: Tensor, mask: Mask) -> Tensor | None:
    """Of the rows, where each sees itself and nothing else; else None."""
    if mask == Mask():
        return torch.full((len(x),), x.shape[1], dtype=torch.int32)
    if mask.spans is None or mask.causal:
        return None
    return torch.bincount(mask.spans.rows).int()
