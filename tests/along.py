"""A stand-in for the kernel that reads rows of any length, which wants a GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core import attention, spans
from regard.models import gpt
from regard.tasks import masked, rewrite


def along_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    asking: Tensor,
    asked: Tensor,
    longest: tuple[int, int],
    *,
    causal: bool,
    dropout: float,
    scale: float,
) -> Tensor:
    """What the kernel for rows of any length does, row by row. Like it, nothing is read beyond the longest, and of
    nothing comes nothing."""
    rows = []
    assert len(asking) == len(asked)
    for (first, last), (start, end) in zip(pairwise(asking.tolist()), pairwise(asked.tolist()), strict=True):
        assert last - first <= longest[0]
        assert end - start <= longest[1]
        if first == last or start == end:
            rows.append(q[first:last] * 0)
            continue
        one = (
            t[None, at].transpose(1, 2)
            for t, at in ((q, slice(first, last)), *((t, slice(start, end)) for t in (k, v)))
        )
        rows.append(F.scaled_dot_product_attention(*one, None, dropout, causal, scale=scale)[0].transpose(0, 1))
    return torch.cat(rows)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spans, attention):
        monkeypatch.setattr(module, "fits", lambda *heads: True)
        monkeypatch.setattr(module, "look_along", along_rows)
    for module in (spans, gpt, masked, rewrite):
        monkeypatch.setattr(module, "has_kernel", lambda device: True)
