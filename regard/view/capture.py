"""What a model looked at while it gave one answer, ready to be drawn.

    with regard.watch(model) as seen:
        ...  # search; the winning hypothesis knows which batch row it had at each step
    trace = Trace(source, target, follow(seen, rows))

`trace.alignment()` then has a row for each token of the answer and a column for each of the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from regard.errors import ConfigError, DataError, Diverged, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from regard.core.beside import Parting

Weights = npt.NDArray[np.float32]

CROSS = ("target", "source")  # the sides of an attention that looks from the answer to the source
DECIMALS = 4  # of a weight in JSON
ROOM = 2**24  # numbers of queries, keys and values that a trace keeps: 64 MiB


def sides(name: str) -> tuple[str, str]:
    """Who asks and who is asked, by an attention's name: "source", "target" or "prefix", the target one step before."""
    parts = name.split(".")
    if parts[-1] == "cross":
        return CROSS
    return ("source", "source") if "encoder" in parts else ("target", "prefix")


@dataclass(frozen=True, eq=False)
class Compared:
    """What one attention compared: its weights are softmax(scores where seen)."""

    q: Weights  # (H, Q, D)
    k: Weights  # (H, K, D)
    v: Weights  # (H, K, Dv)
    scale: float | None  # the score is scale · q·k; None: it is another, and `scores` has it
    scores: Weights | None  # (H, Q, K)
    seen: npt.NDArray[np.bool_] | None  # (H|1, Q, K) True where one may look; None: everywhere

    def score(self, head: int, query: int) -> Weights:
        """(K,): how well one query matched each key."""
        if self.scores is not None:
            return self.scores[head, query]
        return np.float32(self.scale or 1.0) * (self.k[head] @ self.q[head, query])

    def visible(self, head: int, query: int) -> npt.NDArray[np.bool_]:
        """(K,): which keys it could see."""
        if self.seen is None:
            return np.ones(self.k.shape[1], bool)
        return self.seen[head % len(self.seen), query]


@dataclass(frozen=True, eq=False)
class Trace:
    """One sentence, one answer. Padding beyond the tokens is cut off the maps."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    maps: dict[str, Weights] = field(repr=False)  # name -> (H, queries, keys); row t: while token t was chosen
    title: str = ""
    score: float | None = None
    caption: str = ""
    start: str = "<bos>"  # what a decoder sees of its answer before the first word: the mark's own name
    given: int = 0  # so many tokens of the target were not written but read: a prompt
    parts: dict[str, Compared] = field(default_factory=dict, repr=False)  # what some attentions compared
    tree: dict[str, Any] | None = field(default=None, repr=False)  # what a search weighed, see pipeline.searched
    positions: list[dict[str, Any]] = field(default_factory=list, repr=False)  # see view.positions
    asked: dict[str, Any] = field(default_factory=dict)  # the text, and what was changed for it
    model: str = ""  # a hash of the weights

    def __post_init__(self) -> None:
        if not self.maps:
            raise ConfigError("a trace without any attention has nothing to show; watch at least one")
        object.__setattr__(self, "maps", {name: self._fit(name, weights) for name, weights in self.maps.items()})

    def tokens(self, side: str) -> tuple[str, ...]:
        return {"source": self.source, "target": self.target, "prefix": (self.start, *self.target[:-1])}[side]

    def axes(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens that ask (rows) and the tokens that are looked at (columns)."""
        queries, keys = sides(name)
        return self.tokens(queries), self.tokens(keys)

    def pick(self, name: str | None = None) -> str:
        """The attention of that name; without one, the last that looks across from target to source, else the last."""
        if name is None:
            return next((n for n in reversed(self.maps) if sides(n) == CROSS), list(self.maps)[-1])
        if name not in self.maps:
            raise ConfigError(f"no attention is named {name!r} in this trace; {nearest(name, self.maps)}")
        return name

    def mean(self, name: str | None = None, heads: Sequence[int] | None = None) -> Weights:
        """(queries, keys): the mean over some heads of one attention, or over all."""
        name = self.pick(name)
        weights = self.maps[name]
        chosen = [*range(len(weights))] if heads is None else [*heads]
        wrong = [head for head in chosen if not 0 <= head < len(weights)]
        if wrong or not chosen:
            asked = f"head {wrong[0]}" if wrong else "none"
            raise ConfigError(f"{name} has heads 0 to {len(weights) - 1}, but {asked} was asked for")
        mean: Weights = weights[chosen].mean(0)
        return mean

    def all_heads(self, name: str) -> str:
        count = len(self.maps[name])
        return f"mean of {count} heads" if count > 1 else "its only head"

    def alignment(self) -> Weights:
        """(T, S): where in the source each answered token looked; the mean of the heads of the last cross-attention."""
        name = self.pick()
        if sides(name) != CROSS:
            raise ConfigError(
                f"none of {', '.join(self.maps)} looks from target to source; say which to show by its name"
            )
        return self.mean(name)

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`, and back by `from_json`; weights to four decimals, and each map says what its axes are."""
        return {
            "title": self.title,
            "caption": self.caption,
            "score": self.score if self.score is not None and math.isfinite(self.score) else None,
            "tokens": {side: list(self.tokens(side)) for side in ("source", "target", "prefix")},
            "maps": {
                name: {**dict(zip(("queries", "keys"), sides(name), strict=True)), "weights": _rounded(weights)}
                for name, weights in self.maps.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        try:
            tokens, maps = data["tokens"], data["maps"]
            weights = {name: np.asarray(given["weights"], np.float32) for name, given in maps.items()}
            source, target = tuple(tokens["source"]), tuple(tokens["target"])
            about = data["title"], data["score"], data["caption"], tokens["prefix"][0]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise DataError(f"not a trace ({cause}); write one with `regard look --json`") from None
        return cls(source, target, weights, *about)

    def _fit(self, name: str, weights: Weights) -> Weights:
        if weights.ndim != 3 or not len(weights):
            raise ConfigError(f"{name}: weights of shape {weights.shape}, but (heads, queries, keys) is wanted")
        if not np.isfinite(weights).all():
            raise Diverged(f"{name}: some weights are not numbers; the model has diverged, load an earlier checkpoint")
        queries, keys = (len(tokens) for tokens in self.axes(name))
        enough = weights.shape[1] >= queries > 0 and weights.shape[2] >= keys > 0
        if not enough or weights[:, :queries, keys:].any():
            raise ConfigError(
                f"{name}: {weights.shape[1]} × {weights.shape[2]} weights do not fit {queries} × {keys} tokens; "
                "give every token that was read or written, marks included"
            )
        return np.ascontiguousarray(weights[:, :queries, :keys], np.float32)


def follow(seen: Mapping[str, Sequence[Tensor]], rows: Sequence[int], *, sentence: int = 0) -> dict[str, Weights]:
    """What the winning hypothesis looked at: (H, T, K) of each attention that `watch` has seen.

    `rows[t]` is the batch row that the hypothesis had at decoding call t. A call of several queries (a prompt) gives
    several rows of the map. What was read once (by an encoder) has a row per sentence: that of `sentence` is taken.
    """
    return {name: _along(name, calls, rows, sentence) for name, calls in seen.items() if calls}


def keep(parts: Mapping[str, Parting]) -> dict[str, Compared]:
    """What was compared, as arrays; where that is much, of the last attentions only."""
    found: dict[str, Compared] = {}
    room = ROOM
    for name in reversed([name for name in parts if parts[name].calls]):
        part = parts[name].read()
        room -= sum(t.numel() for t in (part.q, part.k, part.v, part.scores) if t is not None)
        if room < 0:
            break
        arrays = (None if t is None else t.numpy() for t in (part.scores, part.seen))
        found[name] = Compared(part.q.numpy(), part.k.numpy(), part.v.numpy(), part.scale, *arrays)
    return {name: found[name] for name in parts if name in found}


def _along(name: str, calls: Sequence[Tensor], rows: Sequence[int], sentence: int) -> Weights:
    read_once = sides(name)[0] == "source" or len(calls) == 1 < len(rows)
    path = [sentence] if read_once else rows
    if not 0 < len(path) <= len(calls):
        raise ConfigError(
            f"{name} was called {len(calls)} times, but the answer took {len(path)}; watch the whole search"
        )
    steps = [_row(name, call, row) for call, row in zip(calls, path, strict=False)]  # the search may have gone on
    longest = max(step.shape[-1] for step in steps)
    return np.concatenate([np.pad(step, ((0, 0), (0, 0), (0, longest - step.shape[-1]))) for step in steps], 1)


def _row(name: str, call: Tensor, row: int) -> Weights:
    if not 0 <= row < len(call):
        raise ConfigError(
            f"{name}: no row {row} in a call of {len(call)} rows; give the rows of the search that was watched"
        )
    return call[row].detach().float().cpu().numpy()


def _rounded(weights: Weights) -> list[Any]:
    rounded: list[Any] = weights.astype(np.float64).round(DECIMALS).tolist()
    return rounded
