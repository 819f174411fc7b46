"""The head owns logits and loss, so that nobody ever materialises (B, T, V)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from regard.core.linear import ALIGNED, Product, Times
from regard.errors import ConfigError

Spread = Callable[[Tensor, Tensor, Tensor | None, int, float], tuple[Tensor, Tensor, Tensor]]

AHEAD = {"cuda"}  # devices that work behind the host's back: to ask them which positions are real is to wait for them
CHUNK = 2**24  # most logits alive at once on a CPU; a GPU takes more at a time (see _rows)
NEAR = CHUNK // 4  # so many nearly fit its caches, which is quicker
ENOUGH = 512  # rows of a chunk: with fewer, the gradient of a large matrix is added to too often


@dataclass
class Loss:
    """Summed over `count` tokens, so that accumulating micro-batches is exact."""

    total: Tensor
    count: int
    parts: dict[str, Tensor] = field(
        default_factory=dict
    )  # further sums worth logging: "nll" is the loss without smoothing
    carry: Any = None  # what the next batch wants to know of this one


class Head(Product):
    """Hidden states to words: logits = W·h (+ b). `tied` lends the matrix of an embedding."""

    def __init__(self, dim: int, vocab: int, *, tied: nn.Embedding | None = None, bias: bool = False) -> None:
        super().__init__()
        if vocab < 1:
            raise ConfigError(f"a head for {vocab} words came; write vocab=, or train by a recipe, which counts them")
        self.weight = nn.Parameter(torch.empty(vocab, dim)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None
        if tied is None:
            nn.init.normal_(self.weight, std=dim**-0.5)
        self.spread: Spread = spread

    def compile(self, *args: Any, **how: Any) -> None:
        """What stands between its products, in one kernel or two, where nobody has brought a better one; chunks of
        rows have no graph."""
        if self.spread is spread:
            self.spread = torch.compile(spread, *args, **how)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.product(hidden)

    @torch.no_grad()
    def logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """How likely each given word was: (B, T, dim), (B, T) -> (B, T)."""
        flat, words = hidden.flatten(0, -2), targets.flatten()
        rows = _rows(hidden, len(self.weight))
        pieces = []
        for h, y in zip(flat.split(rows), words.split(rows), strict=True):
            z = self.logits(h)
            pieces.append(z.to(_exact(z)).log_softmax(-1).gather(1, y[:, None])[:, 0])
        return torch.cat(pieces).view_as(targets)

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        real: Tensor | None = None,
        count: int | None = None,
        smoothing: float = 0.0,
    ) -> Loss:
        """Cross-entropy at the real positions, or at all: targets are (1 - ε)·one-hot + ε/V (Szegedy et al.), summed.

        hidden (B, T, dim), targets and real (B, T). Padding is left out; where the caller knows the `count` of what is
        real, a GPU takes it along with a weight of 0 instead, and nobody waits. Entered by __call__, as the model is:
        hooks run.
        """
        states, words, share = hidden.flatten(0, -2), targets.flatten(), None
        if real is not None and count is not None and hidden.device.type in AHEAD:
            share = real.flatten()
        elif real is not None:
            at = real.flatten().nonzero().squeeze(1)
            states, words = states.index_select(0, at), words.index_select(0, at)
        total, nll = _CrossEntropy.apply(
            states, self.weight, self.bias, words, share, smoothing, self.spread, self.times
        )
        return Loss(total, len(words) if share is None or count is None else count, {"nll": nll})


class _CrossEntropy(torch.autograd.Function):
    """Product, softmax and both gradients, some rows at a time: the table of logits is gone before the next rows come.

    With p = softmax(z), z = Wh: a row loses lse - (1-ε)·z_y - ε·mean(z), and its gradient is p - (1-ε)·e_y - ε/V.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        words: Tensor,
        share: Tensor | None,
        smoothing: float,
        spread: Spread,
        times: Times,
    ) -> tuple[Tensor, Tensor]:
        learning = any(ctx.needs_input_grad)
        d_hidden = torch.empty_like(hidden) if learning else None
        d_bias = torch.zeros_like(bias) if learning and bias is not None else None
        device, vocab = hidden.device.type, len(weight)
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        total, nll = (hidden.new_zeros((), dtype=_exact(hidden)) for _ in range(2))
        rows = _evenly(len(words), _rows(hidden, vocab))
        with torch.autocast(device, enabled=False):
            matrix, shift = _aligned(weight.to(kind), None if bias is None else bias.to(kind))
            room = matrix.new_empty(min(rows, len(words)), len(matrix))  # the same for all: fresh memory costs time
            d_matrix = torch.zeros_like(matrix, dtype=weight.dtype) if learning else None
            for start in range(0, len(words), rows):
                h, y = hidden[start : start + rows].to(kind), words[start : start + rows, None]
                w = None if share is None else share[start : start + rows, None].to(total.dtype)
                z = times(h, matrix.T, room[: len(h)], bias=shift)
                lost, surprise, dz = spread(z, y, w, vocab, smoothing)
                total += lost
                nll += surprise
                if d_hidden is None or d_matrix is None:
                    continue
                d_hidden[start : start + rows] = times(dz, matrix)
                _add_product(d_matrix, dz.T, h, times)
                if d_bias is not None:
                    d_bias += dz.sum(0)[:vocab]
        ctx.save_for_backward(d_hidden, None if d_matrix is None else d_matrix[:vocab], d_bias)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if d is None else d * grad.to(d.dtype) for d in ctx.saved_tensors), *[None] * 5


def _add_product(to: Tensor, a: Tensor, b: Tensor, times: Times) -> None:
    """a·b is added, without being rounded to 16 bits first where a GPU can."""
    if to.dtype == a.dtype:
        times(a, b, to, add=True)
    elif to.is_cuda:
        torch.addmm(to, a, b, out_dtype=to.dtype, out=to)
    else:
        to += a @ b


def spread(z: Tensor, y: Tensor, w: Tensor | None, vocab: int, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """What stands between the products: the loss, the loss without smoothing, and the gradient by z."""
    kind, z = z.dtype, z.to(_exact(z))
    gold, top = z.gather(1, y), z.amax(-1, keepdim=True)
    mean = z[:, :vocab].mean(-1, keepdim=True) if smoothing else 0.0
    norm = z.sub_(top).exp_().sum(-1, keepdim=True)  # in place from here on: z is no longer the logits
    lse = norm.log() + top
    nll, total = lse - gold, lse - (1 - smoothing) * gold - smoothing * mean
    dz = z.div_(norm).sub_(smoothing / vocab)
    if torch.compiler.is_compiling():  # a scatter would end the kernel, and the table be written once more, in 32 bits
        dz = dz - (1 - smoothing) * (torch.arange(z.shape[1], device=z.device) == y).to(z.dtype)
    else:
        dz.scatter_add_(1, y, torch.full_like(lse, smoothing - 1))
    if w is not None:
        nll, total, dz = nll * w, total * w, dz * w
    return total.sum(), nll.sum(), dz.to(kind)


def _aligned(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """On a GPU, a matrix with rows for words that are never told, up to a multiple of ALIGNED: in 16 bits, a table
    whose rows begin anywhere takes several times as long.
    """
    more = -len(weight) % ALIGNED if weight.device.type in AHEAD else 0
    if not more or weight.element_size() > 2:
        return weight, bias
    shift = weight.new_zeros(len(weight)) if bias is None else bias
    return nn.functional.pad(weight, (0, 0, 0, more)), nn.functional.pad(shift, (0, more), value=float("-inf"))


def _exact(x: Tensor) -> torch.dtype:
    """In which sums are made."""
    return torch.promote_types(x.dtype, torch.float32)


class Mixture(Head):
    """Predictions of S vectors, each with its share: p = Σᵢ αᵢ softmax(W hᵢ). A hidden state is (S, dim + 1), log αᵢ
    its last column.

    What hard attention says before it has chosen: the sum over all choices, weighted by how likely they are.
    """

    def logits(self, hidden: Tensor) -> Tensor:
        """log p, (…, S, dim + 1) -> (…, V)."""
        z = self.product(hidden[..., :-1])
        each = z.to(_exact(z)).log_softmax(-1)
        return (each + hidden[..., -1:]).logsumexp(-2)

    @torch.no_grad()
    def logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        pieces = [self.logits(h) for h in hidden.split(self._columns(hidden), 1)]
        return torch.cat(pieces, 1).gather(-1, targets[..., None]).squeeze(-1)

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        real: Tensor | None = None,
        count: int | None = None,
        smoothing: float = 0.0,
    ) -> Loss:
        real = torch.ones_like(targets, dtype=torch.bool) if real is None else real
        total = nll = hidden.new_zeros((), dtype=_exact(hidden))
        columns = self._columns(hidden)
        for h, y, r in zip(hidden.split(columns, 1), targets.split(columns, 1), real.split(columns, 1), strict=True):
            gold, mean = checkpoint(self._gold_and_mean, h, y, use_reentrant=False)
            nll = nll - gold.where(r, 0).sum()
            total = total - ((1 - smoothing) * gold + smoothing * mean).where(r, 0).sum()
        return Loss(total, int(real.sum()) if count is None else count, {"nll": nll.detach()})

    def _gold_and_mean(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logp = self.logits(hidden)
        return logp.gather(-1, targets[..., None]).squeeze(-1), logp.mean(-1)

    def _columns(self, hidden: Tensor) -> int:
        """Target positions at a time: each is a table of (B, S, V)."""
        return max(1, _rows(hidden, len(self.weight)) // (hidden.shape[0] * hidden.shape[2]))


def _rows(hidden: Tensor, vocab: int) -> int:
    if hidden.device.type != "cpu":
        return max(1, 32 * CHUNK // vocab)
    return max(1, min(CHUNK, max(NEAR, ENOUGH * vocab)) // vocab)


def _evenly(count: int, most: int) -> int:
    """Rows of a chunk, where all chunks are about equally large: one shape serves them all, but for the last."""
    return max(1, -(-count // max(1, -(-count // most))))
