"""See what a model looks at, and silence some of it, with no flag in any signature.

with regard.watch(model, names="decoder.*.cross", queries=[-1]) as seen:
    model(source, real, target)
seen["decoder.0.cross"]   # a list of (B, H, Q, K) tensors, one a call
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from operator import index
from types import TracebackType

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.probe import Probe
from regard.errors import ConfigError, nearest

Seen = dict[str, list[Tensor]]


@contextmanager
def watch(
    model: nn.Module,
    names: str | Iterable[str] = "*",
    *,
    heads: int | Iterable[int] | None = None,
    queries: int | Iterable[int] | None = None,
) -> Iterator[Seen]:
    """Maps each attention's name to a list of (B, H, Q, K) weights, one a call, while the fused kernels stay in use.

    `names` are attention names, with * as a wild card; `heads` and `queries` (negative: from the end) narrow what is
    computed.
    """
    chosen = attentions(model, names)
    wanted = _numbers("heads", heads)
    for name, attention in chosen.items():
        _check_heads(name, attention, wanted)
    seen: Seen = {name: [] for name in chosen}
    rows = _numbers("queries", queries)
    probes = {name: Probe(wanted, rows, seen[name]) for name in chosen}
    for name, attention in chosen.items():
        attention.probes = (*attention.probes, probes[name])
    try:
        yield seen
    finally:
        for name, attention in chosen.items():
            attention.probes = tuple(p for p in attention.probes if p is not probes[name])
            probes[name].close()


class silence:
    """Silences heads of one attention: from now on, or as long as a `with` block lasts.

    `undo()` lets them speak again.
    """

    def __init__(self, model: nn.Module, name: str, heads: int | Iterable[int]) -> None:
        found = attentions(model, [name])
        if len(found) > 1:
            raise ConfigError(
                f"{name!r} names {len(found)} attentions, but one is silenced at a time; write {next(iter(found))!r}"
            )
        (self.attention,) = found.values()
        wanted = _numbers("heads", heads) or ()
        _check_heads(name, self.attention, wanted)
        self.heads = tuple(head % self.attention.heads for head in wanted)
        self._hush((*self.attention.quiet, *self.heads))

    def undo(self) -> None:
        """Others who silenced the same heads are still obeyed."""
        left = list(self.attention.quiet)
        for head in self.heads:
            left.remove(head)
        self.heads = ()
        self._hush(tuple(left))

    def _hush(self, quiet: tuple[int, ...]) -> None:
        gain = torch.ones(self.attention.heads)
        gain[list(quiet)] = 0.0
        self.attention.quiet = quiet
        self.attention.gain = gain.to(next(self.attention.parameters(), gain).device) if quiet else None

    def __enter__(self) -> silence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def attentions(model: nn.Module, names: str | Iterable[str] = "*") -> dict[str, Attention]:
    """The attentions of a model by name, in the order of the model. A name that fits none is an error."""
    found = {_plain(name): part for name, part in _attentions(model, "", set())}
    if not found:
        raise ConfigError("this model has no attention to watch; take one that has, such as a Transformer")
    patterns = [names] if isinstance(names, str) else list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise ConfigError(f"no attention is named {pattern!r}; {nearest(pattern, found)}")
    return {name: part for name, part in found.items() if any(fnmatchcase(name, p) for p in patterns)}


def _attentions(part: nn.Module, name: str, known: set[nn.Module]) -> Iterator[tuple[str, Attention]]:
    """Each once. What is inside an attention is none: to ask all modules takes twice as long, while a GPU has nothing
    to do."""
    if part in known:
        return
    known.add(part)
    if isinstance(part, Attention):
        yield name, part
        return
    dot = f"{name}." if name else ""
    for key, one in part._modules.items():
        if one is not None and (one._modules or isinstance(one, Attention)):
            yield from _attentions(one, dot + key, known)


def _plain(name: str) -> str:
    """The name in the model as it was written, whether or not torch.compile is wrapped around it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _numbers(name: str, given: int | Iterable[int] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        return tuple(map(index, (given,) if isinstance(given, int) else given))
    except TypeError:
        what = f"{name}={given!r} came, where a number or a list of numbers was wanted"
        raise ConfigError(f"{what}; write for example {name}=0 or {name}=[0, 1]") from None


def _check_heads(name: str, attention: Attention, heads: tuple[int, ...] | None) -> None:
    for head in heads or ():
        if not -attention.heads <= head < attention.heads:
            raise ConfigError(f"{name} has heads 0 to {attention.heads - 1}, but head {head} was asked for")
