"""The head owns logits and loss, so that nobody ever materialises (B, T, V)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from regard.core.linear import Product

CHUNK = 2**24  # most logits alive at once on a CPU; a GPU takes more at a time (see _rows)


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
        self.weight = nn.Parameter(torch.empty(vocab, dim)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None
        if tied is None:
            nn.init.normal_(self.weight, std=dim**-0.5)

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
            pieces.append(z.to(torch.promote_types(z.dtype, torch.float32)).log_softmax(-1).gather(1, y[:, None])[:, 0])
        return torch.cat(pieces).view_as(targets)

    def forward(self, hidden: Tensor, targets: Tensor, *, real: Tensor | None = None, smoothing: float = 0.0) -> Loss:
        """Cross-entropy at the real positions, or at all: targets are (1 - ε)·one-hot + ε/V (Szegedy et al.), summed.

        hidden (B, T, dim), targets and real (B, T). Entered by __call__, as the model is: hooks run.
        """
        states, words = hidden.flatten(0, -2), targets.flatten()
        if real is not None:
            at = real.flatten().nonzero().squeeze(1)
            states, words = states.index_select(0, at), words.index_select(0, at)
        total, nll = _CrossEntropy.apply(states, self.weight, self.bias, words, smoothing)
        return Loss(total, len(words), {"nll": nll})


class _CrossEntropy(torch.autograd.Function):
    """Product, softmax and both gradients, some rows at a time: the table of logits is gone before the next rows come.

    With p = softmax(z), z = Wh: a row loses lse - (1-ε)·z_y - ε·mean(z), and its gradient is p - (1-ε)·e_y - ε/V.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        learning = any(ctx.needs_input_grad)
        d_hidden = torch.empty_like(hidden) if learning else None
        d_weight = torch.zeros_like(weight) if learning else None
        d_bias = torch.zeros_like(bias) if learning and bias is not None else None
        exact = torch.promote_types(hidden.dtype, torch.float32)
        total, nll = hidden.new_zeros((), dtype=exact), hidden.new_zeros((), dtype=exact)
        vocab = len(weight)
        rows = _rows(hidden, vocab)
        for start in range(0, len(words), rows):
            h, y = hidden[start : start + rows], words[start : start + rows, None]
            z = nn.functional.linear(h, weight, bias).to(exact)
            gold, mean, top = z.gather(1, y), z.mean(-1, keepdim=True), z.amax(-1, keepdim=True)
            norm = z.sub_(top).exp_().sum(-1, keepdim=True)  # in place from here on: z is no longer the logits
            lse = norm.log() + top
            nll += (lse - gold).sum()
            total += (lse - (1 - smoothing) * gold - smoothing * mean).sum()
            if d_hidden is None or d_weight is None:
                continue
            z.div_(norm).sub_(smoothing / vocab)  # p - ε/V
            z.scatter_add_(1, y, torch.full_like(lse, smoothing - 1))
            dz = z.to(weight.dtype)
            d_hidden[start : start + rows] = dz @ weight
            d_weight += dz.T @ h
            if d_bias is not None:
                d_bias += z.sum(0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if d is None else d * grad.to(d.dtype) for d in ctx.saved_tensors), None, None


class Mixture(Head):
    """Predictions of S vectors, each with its share: p = Σᵢ αᵢ softmax(W hᵢ). A hidden state is (S, dim + 1), log αᵢ
    its last column.

    What hard attention says before it has chosen: the sum over all choices, weighted by how likely they are.
    """

    def logits(self, hidden: Tensor) -> Tensor:
        """log p, (…, S, dim + 1) -> (…, V)."""
        z = self.product(hidden[..., :-1])
        each = z.to(torch.promote_types(z.dtype, torch.float32)).log_softmax(-1)
        return (each + hidden[..., -1:]).logsumexp(-2)

    @torch.no_grad()
    def logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        pieces = [self.logits(h) for h in hidden.split(self._columns(hidden), 1)]
        return torch.cat(pieces, 1).gather(-1, targets[..., None]).squeeze(-1)

    def forward(self, hidden: Tensor, targets: Tensor, *, real: Tensor | None = None, smoothing: float = 0.0) -> Loss:
        real = torch.ones_like(targets, dtype=torch.bool) if real is None else real
        total = nll = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        columns = self._columns(hidden)
        for h, y, r in zip(hidden.split(columns, 1), targets.split(columns, 1), real.split(columns, 1), strict=True):
            gold, mean = checkpoint(self._gold_and_mean, h, y, use_reentrant=False)
            nll = nll - gold[r].sum()
            total = total - ((1 - smoothing) * gold + smoothing * mean)[r].sum()
        return Loss(total, int(real.sum()), {"nll": nll.detach()})

    def _gold_and_mean(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logp = self.logits(hidden)
        return logp.gather(-1, targets[..., None]).squeeze(-1), logp.mean(-1)

    def _columns(self, hidden: Tensor) -> int:
        """Target positions at a time: each is a table of (B, S, V)."""
        return max(1, _rows(hidden, len(self.weight)) // (hidden.shape[0] * hidden.shape[2]))


def _rows(hidden: Tensor, vocab: int) -> int:
    return max(1, (CHUNK if hidden.device.type == "cpu" else 32 * CHUNK) // vocab)
