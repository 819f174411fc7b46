"""Attention in four verbs: `project` a memory to keys and values, `weigh` them, `read` them, or `look`: both at once.

weights = softmax(score(q, K))        context = weights · V
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.changes import hooked
from regard.core.dropout import dropout
from regard.core.linear import Layout, Linear, Packable, Packed, product, swiftest
from regard.core.mask import Mask
from regard.core.probe import Probe
from regard.core.score import Dot, Dots, Place, Score, make_score
from regard.core.spans import Spans, fits, look_along
from regard.core.state import KV, Fixed
from regard.errors import ConfigError, nearest

VALUES = ("memory", "projected")
SIDE = 8  # channels, or keys, that are put beside others: a GPU wants multiples of eight
Beside = Callable[[Tensor, KV, Mask], Mask]  # sees queries (B, H, Q, D) and what they look at, says where they may


class Attention(Packable):
    """Queries of width `dim` look at a memory of width `memory_dim`, and read the memory itself or projected values.
    Unless `values` says so, only the dot product reads the memory itself.

    Whoever watches (`regard.watch`) is shown the rows asked for beside the fused kernel, which stays in use.
    """

    def __init__(
        self,
        dim: int,
        *,
        score: str | Score = "scaled_dot",
        heads: int = 1,
        memory_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        values: str | None = None,
    ) -> None:
        super().__init__()
        memory_dim = dim if memory_dim is None else memory_dim
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout={dropout} came, but a share from 0 to below 1 is wanted; write 0.0 for none")
        for name, number, instead in (
            ("dim", dim, "write the width of your queries"),
            ("memory_dim", memory_dim, "leave it out where the memory is as wide as the queries"),
            ("heads", heads, "write heads=1 for a single one"),
        ):
            if not isinstance(number, int) or number < 1:
                raise ConfigError(f"{name}={number!r} came, but a whole number from 1 on is wanted; {instead}")
        if dim % heads:
            fits = max(h for h in range(1, heads) if dim % h == 0)
            raise ConfigError(f"dim={dim} does not divide into heads={heads}; try heads={fits}")
        self.score = make_score(score, dim, memory_dim, heads, bias=bias)
        values = values or ("memory" if isinstance(self.score, Dot) else "projected")
        if values not in VALUES:
            raise ConfigError(f"values={values!r} is not known; {nearest(values, VALUES)}")
        plain = values == "memory"
        if plain and memory_dim % heads:
            raise ConfigError(f"a memory {memory_dim} wide does not divide into heads={heads}; project the values")
        self.value: nn.Module = nn.Identity() if plain else Linear(memory_dim, dim, bias=bias)
        self.output: nn.Module = nn.Identity() if plain else Linear(dim, dim, bias=bias)
        self.width = memory_dim if plain else dim  # of what is read
        self.dim, self.memory_dim, self.heads, self.dropout = dim, memory_dim, heads, dropout
        self.probes: tuple[Probe, ...] = ()  # set by watch
        self.beside: tuple[Beside, ...] = ()  # set by dissect and steer
        self.quiet: tuple[int, ...] = ()  # silent heads, once for each who silenced them; set by silence, as is
        self.gain: Tensor | None = None  # (H,) zero for silent heads

    def project(self, memory: Tensor) -> KV:
        """Keys and values of a memory, to be computed once and looked at often."""
        self._check(memory, "memory_dim")
        return KV.of(self._split(self.score.key(memory)), self._split(self.value(memory)))

    def weigh(self, x: Tensor, kv: KV, mask: Mask = Mask()) -> Tensor:
        """(B, H, Q, K): non-negative, each row sums to one; a row with nothing to see is zero."""
        self._check(x, "dim")
        q = self._split(self.score.query(x))
        q, mask = _gather(q, kv.rows), self._ask(q, kv, mask).shared(len(x), kv.rows)
        return _scatter(_weigh(self.score(q, kv.keys, _place(q, kv, mask)), mask), len(x))

    def read(self, weights: Tensor, kv: KV) -> Tensor:
        """(B, Q, width): the values in the mixture that the weights say. What is read is what a watcher sees."""
        weights = self.show(weights)
        dropped = dropout(weights, self.dropout) if self.training else weights
        return self.output(self._merge(_scatter(_gather(dropped, kv.rows) @ kv.values, len(weights))))

    def show(self, weights: Tensor) -> Tensor:
        """Shows weights to whoever watches, and gives them back without those of silent heads."""
        if self.gain is not None:
            weights = weights * self.gain.to(weights)[:, None, None]
        for probe in self.probes:
            probe.keep(probe.pick(weights.detach()))
        return weights

    def look(self, x: Tensor, kv: KV, mask: Mask = Mask()) -> Tensor:
        """`read(weigh(x))` in one fused kernel, where the score is a dot product."""
        self._check(x, "dim")
        q = self._split(self.score.query(x))
        return self._look(q, kv, self._ask(q, kv, mask))

    def inward(self, x: Tensor, past: KV | None = None, mask: Mask = Mask()) -> tuple[Tensor, KV]:
        """Self-attention: x looks at itself and at what came before it, which comes back with x at its end."""
        self._check(x, "dim")
        y = self._at_once(x)
        if y is None:
            new = self.project(x)
            seen = new if past is None else past.extend(new, mask.own)
            return self.look(x, seen, mask), seen
        q, k, v = y.view(*x.shape[:2], 3, self.heads, y.shape[-1] // (3 * self.heads)).permute(2, 0, 3, 1, 4).unbind()
        seen = KV.of(k, v) if past is None else past.extend(KV.of(k, v), mask.own)
        return self._look(q, seen, self._ask(q, seen, mask)), seen

    def _at_once(self, x: Tensor) -> Tensor | None:
        """Queries, keys and values side by side in one product, where it is prepared or worth its preparation: in
        training, where many vectors come at a time and each product is three, with its gradients.
        """
        parts = self._alike()
        if (joined := self._joined(parts)) is not None and joined.fits(x):
            return joined.product(x)
        if not parts or not torch.is_grad_enabled():
            return None
        bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        return product(x, torch.cat([part.weight for part in parts]), bias, self.times)

    def _alike(self) -> list[Linear]:
        """The three matrices, where they could be one and nobody wants to know of each."""
        parts = [self.score.query, self.score.key, self.value]
        if any(type(part) is not Linear or hooked(part) for part in parts):
            return []
        kinds = [(part.weight.shape, part.bias is None) for part in parts]
        return parts if kinds[0] == kinds[1] == kinds[2] else []  # type: ignore[return-value]

    def _joined(self, parts: Sequence[nn.Module]) -> Packed | None:
        packed = self.packed
        return packed if packed is not None and packed.made_of(parts) else None

    @property
    def joined(self) -> Packed | None:
        """Their product in one, where it was prepared of those that are there now."""
        return self._joined(self._alike())

    @property
    def minded(self) -> bool:
        """Somebody watches, silences or asks beside."""
        return bool(self.probes or self.beside or self.quiet)

    def _ask(self, q: Tensor, kv: KV, mask: Mask) -> Mask:
        mask = kv.masked(mask)
        for beside in self.beside:
            mask = beside(q, kv, mask)
        return mask

    def _look(self, q: Tensor, kv: KV, mask: Mask) -> Tensor:
        score, batch = self.score, q.shape[0]
        if batch != kv.rows:
            q, mask = _gather(q, kv.rows), mask.shared(batch, kv.rows)
        place = _place(q, kv, mask)
        dots = score.prepare(q, kv.keys, place)
        dropout = self.dropout if self.training else 0.0
        if (spans := mask.spans) is not None and not _laid(dots, kv, spans, dropout):
            q, k, v = _unpack(q, spans.asking), _unpack(kv.keys, spans), _unpack(kv.values, spans)
            return spans.asking.pack(self._look(q, KV.of(k, v), mask.unpacked()))
        if dots is None:
            return self.read(_scatter(_weigh(score(q, kv.keys, place), mask), batch), kv)
        context = _scatter(_fused(dots, kv, mask, dropout), batch)
        if self.gain is not None:
            context = context * self.gain.to(context)[:, None, None]
        for probe in self.probes:
            self._show(probe, dots, mask, batch)
        return self.output(self._merge(context))

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Mask | Tensor | None = None) -> Tensor:
        """(B, Q, dim) and a memory (B, K, memory_dim), or itself -> (B, Q, width).

        `mask`: a `Mask`, or a tensor that is True where one may look: (B, K), (B, Q, K) or (B, heads, Q, K).
        """
        self._check(x, "dim")
        memory = x if memory is None else memory
        self._check(memory, "memory_dim")
        if len(x) != len(memory):
            raise ValueError(
                f"{len(x)} rows of queries and {len(memory)} of memory came, but each row has a memory of its own; "
                "repeat the memory where rows share one"
            )
        if isinstance(mask, Tensor):
            self._check_mask(mask, x, memory)
        return self.look(x, self.project(memory), Mask.of(mask))

    def _check_mask(self, mask: Tensor, x: Tensor, memory: Tensor) -> None:
        whole = (len(x), self.heads, x.shape[1], memory.shape[1])
        wanted = {2: (whole[0], whole[3]), 3: (whole[0], *whole[2:]), 4: whole}.get(mask.ndim)
        if wanted is not None and any(n not in (1, size) for n, size in zip(mask.shape, wanted, strict=True)):
            raise ValueError(
                f"a mask of shape {tuple(mask.shape)} came, but {wanted} is wanted: rows, heads where they differ, "
                "queries where they differ, keys"
            )

    def pack(self, layout: Layout = swiftest) -> None:
        """Queries, keys and values in one product, for looking inward."""
        if parts := self._alike():
            self.packed = Packed(*(part._parameters for part in parts), layout=layout)

    @torch.no_grad()
    def _show(self, probe: Probe, dots: Dots, mask: Mask, batch: int) -> None:
        """The rows that a probe asked for, from the same q, k and mask as the fused kernel's."""
        if (spans := mask.spans) is not None:  # shown as if the batch had been padded
            dots = dots._replace(q=_unpack(dots.q, spans.asking), k=_unpack(dots.k, spans))
            mask, batch = mask.unpacked(), len(spans.real)
        q, k = _scatter(dots.q, batch), dots.k
        rows = probe.rows(q.shape[-2], q.device)
        if mask.keys is not None and mask.only_keys and dots.bias is None and batch == len(k) and self.gain is None:
            probe.keep(_weigh_keys(probe.pick(q) * dots.scale, probe.of_heads(k), mask.keys))
            return
        table = _scatter(_gather(probe.pick(q), len(k)) * dots.scale @ probe.of_heads(k).transpose(-2, -1), batch)
        if dots.bias is not None:
            table = table + probe.pick(dots.bias)
        seen: Tensor | None
        if mask.pairs is not None and batch != len(k):  # of hypotheses that asked together
            seen = probe.pick(_scatter(mask.dense(q.shape[-2] * (batch // len(k)), k.shape[-2], q.device), batch))  # type: ignore[arg-type]
        else:
            seen = mask.dense(q.shape[-2], k.shape[-2], q.device, rows)
            seen = None if seen is None else probe.of_heads(seen)
        if seen is not None and 1 < len(seen) < batch:
            seen = seen.repeat_interleave(batch // len(seen), 0)
        weights = _softmax(table, seen)
        if self.gain is not None:
            weights = weights * probe.of_heads(self.gain.to(weights)[None, :, None, None])
        probe.keep(weights)

    def _check(self, x: Tensor, width: str) -> None:
        """Queries are `dim` wide, and a memory `memory_dim`."""
        wanted = getattr(self, width)
        if x.ndim == 3 and x.shape[-1] == wanted:
            return
        what, instead = "queries" if width == "dim" else "a memory", f"write {width}={x.shape[-1]}"
        if x.ndim != 3:
            instead = "put the batch first, also where it is a batch of one"
        elif width == "memory_dim" and isinstance(self.score, Dot):
            instead += " and score='general', which brings the query to the keys' width, or 'scaled_dot'"
        raise ValueError(f"{what} of shape {tuple(x.shape)} came, but (batch, words, {wanted}) is wanted; {instead}")

    def _split(self, x: Tensor) -> Tensor:  # (B, Q, dim) -> (B, H, Q, D)
        return x.view(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).transpose(1, 2)

    def _merge(self, x: Tensor) -> Tensor:  # (B, H, Q, D) -> (B, Q, dim)
        return x.transpose(1, 2).flatten(2)


def _gather(q: Tensor, rows: int) -> Tensor:
    """Hypotheses that share the memory of their sentence ask together: (B·n, H, Q, D) -> (B, H, n·Q, D)."""
    if q.shape[0] == rows:
        return q
    if len(q) % rows:
        raise ValueError(f"{len(q)} rows cannot share a memory of {rows}; repeat the memory first")
    return q.unflatten(0, (rows, -1)).transpose(1, 2).flatten(2, 3)


def _scatter(t: Tensor, batch: int) -> Tensor:
    """The way back: (B, H, n·Q, D) -> (B·n, H, Q, D)."""
    if t.shape[0] == batch:
        return t
    return t.unflatten(2, (batch // len(t), -1)).transpose(1, 2).flatten(0, 1)


def _unpack(t: Tensor, spans: Spans) -> Tensor:
    """Rows that lie end to end, side by side again: (1, H, N, D) -> (B, H, T, D)."""
    return spans.unpack(t.transpose(1, 2)).transpose(1, 2)


def _laid(dots: Dots | None, kv: KV, spans: Spans, dropout: float) -> bool:
    """Whether rows can be looked at as they lie end to end."""
    return dots is not None and dots.bias is None and spans.takes(dots.q, dots.k, kv.values, dropout=dropout)


def _place(q: Tensor, kv: KV, mask: Mask) -> Place:
    return Place(mask.start(q.shape[-2], kv.length))


def _weigh(table: Tensor, mask: Mask) -> Tensor:
    return _softmax(table, mask.dense(table.shape[-2], table.shape[-1], table.device))


def _weigh_keys(q: Tensor, k: Tensor, real: Tensor) -> Tensor:
    """softmax(q·k) where all queries of a row may look at the same keys, (B, K): who may not be looked at says so in a
    channel of its own, so that the product is the whole score and no table is filled afterwards. A row with nothing to
    see looks at one more key, which nobody is shown. As in the fused kernel, NaN in a hidden key is seen."""
    nothing = max(torch.finfo(kind).min for kind in (q.dtype, _multiplied(q)))
    told = torch.full((len(k), 1, k.shape[-2] + SIDE, SIDE), 0.0, dtype=q.dtype, device=q.device)
    told[:, 0, : k.shape[-2], 0].masked_fill_(~real, nothing)
    told[:, 0, k.shape[-2] :, 0] = float("-inf")
    told[:, 0, k.shape[-2], 0] = nothing / 2
    keys = torch.cat([F.pad(k, (0, 0, 0, SIDE)), told.expand(-1, k.shape[1], -1, -1)], -1)
    return (F.pad(q, (0, SIDE), value=1.0) @ keys.transpose(-2, -1)).softmax(-1)[..., : k.shape[-2]]


def _multiplied(x: Tensor) -> torch.dtype:
    """In which precision products are made of it."""
    device = x.device.type
    halved = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if halved else x.dtype


def _softmax(table: Tensor, seen: Tensor | None) -> Tensor:
    """A row with nothing to see becomes zero, as in the fused kernel; -inf would make it NaN."""
    if seen is None:
        return table.softmax(-1)
    hidden = ~seen
    return table.masked_fill(hidden, torch.finfo(table.dtype).min).softmax(-1).masked_fill(hidden, 0.0)


def _fused(dots: Dots, kv: KV, mask: Mask, dropout: float) -> Tensor:
    v = kv.values
    if mask.spans is not None:
        return mask.spans.look(dots.q, dots.k, v, causal=mask.causal, dropout=dropout, scale=dots.scale)
    if isinstance(kv, Fixed) and kv.kernels is not None and dots.k is kv.k and dots.bias is None and mask.pairs is None:
        return kv.kernels.attend(dots.q, kv.k, kv.v, kv.seen, kv.places, dots.scale)
    q, k = dots.q.shape[-2], dots.k.shape[-2]
    if mask.only_starts(q, k) and dots.bias is None and fits(dots.q, dots.k, v):
        return _along(dots, v, mask, dropout)
    causal = dots.bias is None and mask.plainly_causal(q, k)
    as_it_is = mask.drawn is not None and mask.pairs is None and dots.bias is None
    seen = None if causal else mask.drawn if as_it_is else mask.dense(q, k, dots.q.device)
    if dots.bias is not None:
        seen = dots.bias if seen is None else dots.bias.masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(dots.q, dots.k, v, seen, dropout, causal, scale=dots.scale)


def _along(dots: Dots, v: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Rows one behind the other, (B, H, T, D) -> (B·T, H, D), and each segment by itself."""
    assert mask.starts is not None
    rows, _, length, _ = dots.q.shape
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (dots.q, dots.k, v))
    starts, longest = mask.starts, (length, length)
    context = look_along(q, k, v, starts, starts, longest, causal=mask.causal, dropout=dropout, scale=dots.scale)
    return context.unflatten(0, (rows, length)).transpose(1, 2)
