"""What the page asks of a trace, as JSON and bytes: small first, more on demand, and exact for whatever is printed.

header      tokens, shapes, a few figures of each head
thumbs      uint8 (attentions, heads, 64, 64): every head, the largest weight of each patch
head        uint8 (queries, keys): one head
row         float32 (keys): one row of it, exactly
arithmetic  how that row came about
search      what else might have been answered

Weights travel as round(255 · √w): the eye sees small ones, and none is off by more than a 250th.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from torch import nn

from regard.core.beside import steer
from regard.core.watch import attentions
from regard.core.watch import silence as silenced
from regard.errors import ConfigError, nearest
from regard.view.capture import CROSS, Trace, Weights, sides
from regard.view.positions import positions

__all__ = [
    "MEAN", "arithmetic", "digest", "head", "header", "page_file", "page_files", "positions", "row", "search", "thumbs",
    "trace_of",
]  # fmt: skip

FORMAT = 1
SIDE = 64  # of a thumbnail
MEAN = -1  # in place of a head: the mean of all
DIGITS = 8
MARK = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")  # <eos>, [CLS]
TYPES = {
    "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml", "txt": "text/plain; charset=utf-8",
}  # fmt: skip

Bytes = npt.NDArray[np.uint8]


class Looker(Protocol):
    """As much of a pipeline as a trace needs."""

    @property
    def model(self) -> nn.Module: ...
    def look(self, text: str, **how: Any) -> Trace: ...


# ---- making a trace


def trace_of(
    pipeline: Looker,
    text: str,
    *,
    silence: Mapping[str, Sequence[int]] | None = None,
    force: Mapping[str, Any] | None = None,
    **how: Any,
) -> Trace:
    """What the model looked at, and what it would have done otherwise.

    `silence` maps attentions to heads that say nothing. `force` may have a "prefix", with which the answer begins, and
    "look", which maps positions written to the positions read that they must look at.
    """
    silence, force = silence or {}, dict(force or {})
    if unknown := force.keys() - {"prefix", "look"}:
        name = sorted(unknown)[0]
        raise ConfigError(f"force: {name!r} cannot be forced; {nearest(name, ('prefix', 'look'))}")
    plan = {int(query): int(key) for query, key in (force.get("look") or {}).items()}
    asked = {
        "text": text,
        "silence": {name: list(heads) for name, heads in silence.items()},
        "force": force,
        "how": how,
    }
    with ExitStack() as stack:
        for name, heads in silence.items():
            stack.enter_context(silenced(pipeline.model, name, heads))
        for name in _crosses(pipeline.model) if plan else ():
            stack.enter_context(steer(pipeline.model, name, plan))
        more = {"prefix": force["prefix"]} if force.get("prefix") else {}
        trace = pipeline.look(text, **more, **how)
    return replace(trace, asked=asked, positions=positions(pipeline.model), model=model_hash(pipeline.model))


def _crosses(model: nn.Module) -> list[str]:
    found = [name for name in attentions(model) if sides(name) == CROSS]
    if not found:
        raise ConfigError("force: this model has no attention from target to source that could be told where to look")
    return found


_HASHES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def model_hash(model: nn.Module) -> str:
    """Of all weights, computed once."""
    if model not in _HASHES:
        found = hashlib.blake2b(digest_size=8)
        for name, weight in model.state_dict().items():
            found.update(name.encode())
            found.update(weight.detach().cpu().float().contiguous().numpy().tobytes())
        _HASHES[model] = found.hexdigest()
    return _HASHES[model]


# ---- asking it


def header(trace: Trace) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "title": trace.title,
        "caption": trace.caption,
        "score": trace.score if trace.score is not None and math.isfinite(trace.score) else None,
        "model": trace.model,
        "asked": trace.asked,
        "tokens": {side: list(trace.tokens(side)) for side in ("source", "target", "prefix")},
        "given": trace.given,
        "maps": _maps(trace),
        "main": trace.pick(),
        "heads": max(len(weights) for weights in trace.maps.values()),
        "side": SIDE,
        "search": trace.tree is not None,
        "positions": bool(trace.positions),
    }


_MAPS: WeakKeyDictionary[Trace, list[dict[str, Any]]] = WeakKeyDictionary()


def _maps(trace: Trace) -> list[dict[str, Any]]:
    """What is to be known of each attention before it is seen; computed once, for it goes through all weights."""
    if trace not in _MAPS:
        _MAPS[trace] = [_about(trace, name) for name in trace.maps]
    return _MAPS[trace]


def _about(trace: Trace, name: str) -> dict[str, Any]:
    weights = trace.maps[name]
    queries, keys = sides(name)
    figures = [_figures(head, trace.axes(name)[1]) for head in weights]
    return {
        "name": name,
        "queries": queries,
        "keys": keys,
        "heads": len(weights),
        "shape": list(weights.shape[1:]),
        "thumb": [min(SIDE, n) for n in weights.shape[1:]],
        "arithmetic": name in trace.parts,
        **{figure: [_round(each[figure]) for each in figures] for figure in figures[0]},
    }


def _figures(head: Weights, keys: Sequence[str]) -> dict[str, Any]:
    """How spread its rows are in bits, how far it looks, how much next to the diagonal and at marks, on average."""
    rows, columns = head.shape
    ahead = np.arange(rows)[:, None] * ((columns - 1) / max(rows - 1, 1)) - np.arange(columns)
    away = np.abs(ahead, dtype=np.float32)
    marks = [place for place, key in enumerate(keys) if MARK.fullmatch(key)]
    return {
        "most": head.max(),
        "entropy": -np.vdot(head, np.log2(np.maximum(head, 1e-30))) / rows,
        "distance": np.vdot(head, away) / rows,
        "diagonal": np.vdot(head, away <= 1) / rows,
        "marks": head[:, marks].sum() / rows,
    }


def thumbs(trace: Trace) -> bytes:
    """uint8 (attentions, heads, 64, 64); what is smaller stands in the upper left corner, and the rest is 0."""
    heads = max(len(weights) for weights in trace.maps.values())
    found = np.zeros((len(trace.maps), heads, SIDE, SIDE), np.uint8)
    for place, weights in enumerate(trace.maps.values()):
        small = _pool(_pool(weights, 1), 2)
        found[place, : len(weights), : small.shape[1], : small.shape[2]] = _quantised(small)
    return found.tobytes()


def _pool(weights: Weights, axis: int) -> Weights:
    """At most 64 along an axis: of each stretch the largest."""
    n = weights.shape[axis]
    if n <= SIDE:
        return weights
    return np.maximum.reduceat(weights, np.arange(SIDE) * n // SIDE, axis)


def head(trace: Trace, name: str, h: int) -> bytes:
    """uint8 (queries, keys); h = -1: the mean of all heads."""
    return _quantised(_head(trace, name, h)).tobytes()


def row(trace: Trace, name: str, h: int, q: int) -> bytes:
    """float32 (keys), little-endian."""
    weights = _head(trace, name, h)
    return weights[_place(name, q, len(weights))].astype("<f4").tobytes()


def arithmetic(trace: Trace, name: str, h: int, q: int) -> dict[str, Any]:
    """From one query and all keys to one row of weights and what it read."""
    weights = _head(trace, name, h)
    if name not in trace.parts or h == MEAN:
        what = "the mean of its heads" if h == MEAN else name
        raise ConfigError(f"queries, keys and values of {what} were not kept; choose a head of one that was")
    part, q = trace.parts[name], _place(name, q, len(weights))
    scores, seen = part.score(h, q), part.visible(h, q)
    shares = np.exp(np.where(seen, scores - scores.max(where=seen, initial=-np.inf), -np.inf), dtype=np.float64)
    dots = None if part.scale is None else scores / (part.scale or 1.0)
    return {
        "q": _list(part.q[h, q]),
        "k": _list(part.k[h]),
        "dots": None if dots is None else _list(dots),
        "scale": part.scale,
        "scores": _list(scores),
        "seen": seen.tolist(),
        "softmax": _list(shares / (shares.sum() or 1.0)),
        "weights": _list(weights[q]),
        "v": _list(part.v[h]),
        "mix": _list(weights[q] @ part.v[h]),
    }


def search(trace: Trace) -> dict[str, Any]:
    if trace.tree is None:
        raise ConfigError("nothing was searched for in this trace: drawing lots and reading weigh no candidates")
    return trace.tree


def digest(trace: Trace) -> str:
    """Of everything that can be asked of it."""
    found = hashlib.blake2b(digest_size=16)
    told = {**header(trace), "tree": trace.tree, "places": trace.positions}
    found.update(json.dumps(told, sort_keys=True, default=str).encode())
    for weights in trace.maps.values():
        found.update(weights.tobytes())
    for part in trace.parts.values():
        for array in (part.q, part.k, part.v):
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _head(trace: Trace, name: str, h: int) -> Weights:
    return trace.mean(name, None if h == MEAN else [h])


def _place(name: str, q: int, queries: int) -> int:
    if not 0 <= q < queries:
        raise ConfigError(f"{name} has queries 0 to {queries - 1}, but {q} was asked for")
    return q


def _quantised(weights: Weights) -> Bytes:
    return np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


def _round(x: Any) -> float:
    return round(float(x), DIGITS)


def _list(array: npt.NDArray[Any]) -> list[Any]:
    found: list[Any] = array.astype(np.float64).round(DIGITS).tolist()
    return found


# ---- the page's own files


def page_file(name: str) -> tuple[bytes, str]:
    """A file of the page and its content type, from memory."""
    found = page_files()
    if name not in found:
        raise ConfigError(f"the page has no file {name!r}; {nearest(name, found)}")
    return found[name], TYPES[name.rsplit(".", 1)[-1]]


@cache
def page_files() -> dict[str, bytes]:
    """All files of the page by name, index.html first."""
    found = dict(_walk(files("regard.view") / "page", ""))
    return {name: found[name] for name in sorted(found, key=lambda name: (name != "index.html", name))}


def _walk(folder: Traversable, before: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{before}{entry.name}/")
        elif entry.name.rsplit(".", 1)[-1] in TYPES:
            found.append((before + entry.name, entry.read_bytes()))
    return found
