"""Documents that share a row and must not see each other, for models that read with a state.

Ids are equal where tokens belong to one document. A window is taken apart into documents, each is read as a row of its
own, and what was said of them is put where they stood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.core.state import State, each

Read = Callable[[Tensor, Any, Tensor], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Documents:
    """Ids (B, T), and where documents begin when the rows lie one behind the other."""

    ids: Tensor
    starts: Tensor | None = None  # (R + 1,) the last is the end, as often as there are places left


def begins(documents: Tensor) -> Tensor:
    """True at the first token of each document, (B, T)."""
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return first


def apart(x: Tensor, state: State, read: Read) -> tuple[Tensor, Any]:
    """x (B, T, C), its documents in `state.memory` -> what is said at each token, and the past after the last.

    `read(pieces, past, real)` gives that of rows of uneven length; a document that was begun before x goes on from its
    past, of which the rows are dim 0.
    """
    fresh = begins(state.memory.ids)[:, state.length : state.length + x.shape[1]]
    cuts = fresh.clone()
    cuts[:, 0] = True
    rows = cuts.flatten().cumsum(0).view_as(cuts) - 1  # (B, T) the row that each token comes to stand in
    lengths = rows.flatten().bincount()
    pieces = pad_sequence(list(x.flatten(0, 1).split(lengths.tolist())), batch_first=True)
    real = torch.arange(pieces.shape[1], device=x.device) < lengths[:, None]

    def begun(past: Tensor) -> Tensor:
        """Of the pieces that go on; the others begin with zeros, which is to know nothing."""
        known = past * ~fresh[:, 0].view(-1, *[1] * (past.ndim - 1))
        return past.new_zeros(len(pieces), *past.shape[1:]).index_copy(0, rows[:, 0], known)

    y, after = read(pieces, each(state.past, begun), real)
    return y[real].view(*x.shape[:2], -1), each(after, lambda past: past[rows[:, -1]])
