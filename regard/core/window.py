"""How far a decoder looks around: everywhere, or near a place p (Luong et al. 2015).

    global    all of the source
    local-m   |i - p| ≤ D with p = t: the source is read in step with the target
    local-p   p = (S - 1) · sigmoid(v · tanh(Wq)), predicted; and the weights fade by exp(-(i - p)² / 2σ²), σ = D/2

The paper has p = S · sigmoid(…). Here words are counted from 0, so S would lie behind the last of them; the authors'
code, which counts from 1, likewise goes from the first word to the last. The fading multiplies weights that sum to one
already, so those of local-p sum to less: as the authors do it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.core.mask import Mask
from regard.errors import ConfigError


class View(NamedTuple):
    """What a window leaves to see: a mask, and how much of each weight is left."""

    mask: Mask
    fading: Tensor | None = None  # (B, 1, Q, K)


class Global(nn.Module):
    """All of the source."""

    def forward(self, x: Tensor, step: int | Tensor, mask: Mask, keys: int, sentences: int) -> View:
        """Queries (B, Q, dim), the first of them at target position `step` (or (B,), each row at its own), before
        `keys` keys of each of so many sentences."""
        return View(mask)


class LocalM(Global):
    """In step with the target (m for monotonic); beyond the end of the source, at its end."""

    def __init__(self, dim: int, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, x: Tensor, step: int | Tensor, mask: Mask, keys: int, sentences: int) -> View:
        last = lengths(mask, keys, x, sentences) - 1
        steps = torch.arange(x.shape[1], device=x.device) + (step[..., None] if isinstance(step, Tensor) else step)
        at = torch.minimum(steps, last[:, None])
        return View(_near(mask, at, self.reach, keys))


class LocalP(Global):
    """Around a predicted place, and fading (p for predictive)."""

    def __init__(self, dim: int, reach: int) -> None:
        super().__init__()
        if reach < 1:
            raise ConfigError(
                f"reach: window 'local-p' fades over half its reach, and {reach} leaves nothing to see; write 1 or more"
            )
        self.reach, self.deviation = reach, reach / 2
        self.inner, self.place = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 1, bias=False)

    def forward(self, x: Tensor, step: int | Tensor, mask: Mask, keys: int, sentences: int) -> View:
        last = lengths(mask, keys, x, sentences) - 1
        p = (
            self.place(self.inner(x).tanh()).squeeze(-1).sigmoid() * last[:, None]
        )  # (B, Q), from the first key to the last
        away = torch.arange(keys, device=x.device) - p[..., None]
        fading = torch.exp(away.square() / (-2 * self.deviation**2))
        return View(_near(mask, p.detach().floor(), self.reach, keys), fading[:, None])


WINDOWS: dict[str, type[Global]] = {"global": Global, "local-m": LocalM, "local-p": LocalP}


def make_window(name: str, dim: int, reach: int) -> Global:
    return Global() if name == "global" else WINDOWS[name](dim, reach)


def lengths(mask: Mask, keys: int, x: Tensor, sentences: int) -> Tensor:
    """(B,) real keys before each row of queries; several hypotheses have one sentence's."""
    real = torch.full((sentences,), keys, device=x.device) if mask.keys is None else mask.keys.sum(1)
    return real.repeat_interleave(len(x) // sentences)


def _near(mask: Mask, at: Tensor, reach: int, keys: int) -> Mask:
    return mask & Mask(pairs=((torch.arange(keys, device=at.device) - at[..., None]).abs() <= reach)[:, None])
