"""The seam through which an attention shows its weights."""

from __future__ import annotations

import torch
from torch import Tensor


class Probe:
    """Picks the heads and queries that somebody asked for, and keeps their rows."""

    def __init__(self, heads: tuple[int, ...] | None, queries: tuple[int, ...] | None, seen: list[Tensor]) -> None:
        self.heads, self.queries, self.seen = heads, queries, seen
        self.key = min(
            set(range(len(_OPEN) + 1)) - set(_OPEN)
        )  # the smallest free one: watching again compiles nothing again
        self.tally = torch.zeros((), dtype=torch.int64)
        _OPEN[self.key] = seen

    def close(self) -> None:
        del _OPEN[self.key]

    def rows(self, q: int, device: torch.device) -> Tensor | None:
        """Which of `q` queries are wanted; None: all. Positions that this call does not have are passed over."""
        if self.queries is None:
            return None
        return torch.tensor([i % q for i in self.queries if -q <= i < q], dtype=torch.long, device=device)

    def pick(self, t: Tensor) -> Tensor:  # (B, H, Q, ...) -> (B, heads, queries, ...)
        rows = self.rows(t.shape[2], t.device)
        return self.of_heads(t) if rows is None else self.of_heads(t).index_select(2, rows)

    def of_heads(self, t: Tensor) -> Tensor:  # (B, H, ...) -> (B, heads, ...)
        return t if self.heads is None or t.shape[1] == 1 else t[:, list(self.heads)]

    def keep(self, rows: Tensor) -> None:
        if torch.compiler.is_compiling():
            torch.ops.regard.show(rows, self.tally, self.key)
        else:
            self.seen.append(rows)


# A compiled graph cannot append to a list without being compiled anew at each length. It can call an operator that
# claims to write to a tensor, so that it is neither dropped nor moved, and that operator can append.
_OPEN: dict[int, list[Tensor]] = {}


@torch.library.custom_op("regard::show", mutates_args=("tally",))
def _show(rows: Tensor, tally: Tensor, key: int) -> None:
    tally += 1
    _OPEN[key].append(rows.clone())


@_show.register_fake
def _(rows: Tensor, tally: Tensor, key: int) -> None:
    return None
