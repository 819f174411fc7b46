"""Search on a GPU without waiting for it: step, filters, choice and bookkeeping are one captured graph.

    source ─start─▶ prompt ─step─▶ first words ─enter─▶ a desk ─replay, replay, …─▶ what was told ─▶ books
                                                          ▲  every few steps the host looks who is done, ┘
                                                          └─ and fewer rows get a smaller desk ◀────────

A graph is captured once for each size of a desk (sentences, tokens, source, the way to search) and then replayed
word after word, each time as one call: at small batches the time of a step is that of calling its kernels one by one.
The host keeps the same books as the plain search, from what the device has told, while the device is at the next
words; so tokens, scores and ancestries are those of `regard.decode.search`.

    model = capture(pack(model))      # greedy(model.step, model.start(…), …), sample and beam find it there
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from regard.core.autoregressive import Autoregressive
from regard.core.changes import Likeness, meddled, notice_optimizers, parts_of
from regard.core.state import Kernels, State
from regard.decode import filters as known
from regard.decode.desk import WARM, Desk
from regard.decode.line import Line
from regard.decode.prompt import Act, Places, Prompt, Record, Replay, Source, doubled, roomy
from regard.decode.search import advance
from regard.decode.standing import Standing, length_of, tensors
from regard.device import is_current, record_graph, rehearse

EVERY = 8  # steps from one look at who is done to the next
DESKS = 16  # kept; the one that was used longest ago makes room
PLACES = 32  # for texts that are read, of all sizes

M = TypeVar("M", bound=nn.Module)


def captured(act: Act, pool: Any) -> Replay:
    """One call for all kernels of some work."""
    for _ in range(WARM):
        rehearse(act)
    return record_graph(act, pool).replay


ON: dict[Record, str] = {captured: "cuda"}  # where it is possible; any other, everywhere


def _possible(record: Record, device: torch.device) -> bool:
    return ON.get(record, device.type) == device.type


class Captured:
    """A model's `step`, which can also go ahead by itself, and its `start`. It steps aside, and lets the plain search
    do its work, where somebody watches or silences, with a record, coverage or prefixes, and where there is no GPU."""

    def __init__(
        self,
        model: Autoregressive,
        record: Record = captured,
        every: int = EVERY,
        kernels: Kernels | None = None,
    ) -> None:
        self.model, self.record, self.every, self.kernels = model, record, every, kernels
        self.desks: dict[object, Desk] = {}
        self.sources, self.prompts = Places(Source, record, PLACES), Places(Prompt, record, PLACES)
        self.captures = 0  # so far
        self.broken = False  # it was tried, and could not be captured
        self.pool: Any = None
        self.like: Likeness | None = None  # what the model was when they were captured
        self.alone = Lock()  # desks are written on: whoever comes from another thread waits

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return Autoregressive.step(self.model, tokens, state)

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        """In one call, where a source of its size has been read before."""
        plain, parts = type(self.model).start, parts_of(self.model)
        if source is None or not torch.is_inference_mode_enabled() or not self._able(source.device, parts):
            return plain(self.model, source, real, rows=rows)
        with self.alone:
            self._forget_what_is_stale(parts)
            self._fresh_pool(source.device)
            place = self.sources.find(self.model, source, self.pool)
            return plain(self.model, source, real, rows=rows) if place is None else place.read(source, real)

    def __deepcopy__(self, memo: dict[int, Any]) -> Captured:
        own = deepcopy(self.model, memo)  # a copy of the model has weights of its own
        return Captured(own, self.record, self.every, self.kernels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Saved with its model, without what was captured; kernels are a module, which is known by its name."""
        kernels = self.kernels.__name__ if isinstance(self.kernels, ModuleType) else self.kernels
        return _again, (self.model, self.record, self.every, kernels)

    @property
    def bytes(self) -> int:
        """Of all desks, but for what their graphs work with."""
        buffers = [t for desk in self.desks.values() for t in (desk.told, *desk.standing.by_sentence())]
        return sum(t.numel() * t.element_size() for t in buffers)

    def run(self, state: State, prompt: Tensor, lines: Sequence[Line]) -> bool:
        """Whether it was done here: lines that are left alone are for the plain search."""
        with self.alone:
            return self._run(state, prompt, lines)

    def _run(self, state: State, prompt: Tensor, lines: Sequence[Line]) -> bool:
        need = state.length + prompt.shape[1] + max(line.limit for line in lines) - 1
        parts = parts_of(self.model)
        if not self._suits(state, prompt, lines, need, parts):
            return False
        desk = self._ready(state, prompt, lines, need, parts)
        if desk is None:
            logits, state = self._read(prompt, state, parts)
            desk = self._desk(state, lines[0], len(lines), need)
            if desk is None:
                return False
            advance(lines, logits)
        stay = [place for place, line in enumerate(lines) if line.going]
        if stay:
            live = [lines[place] for place in stay]
            desk.enter(state, live, _filled(stay, desk.standing.sentences, prompt.device), prompt)
            self._write(desk, live)
        return True

    def _ready(
        self, state: State, prompt: Tensor, lines: Sequence[Line], need: int, parts: Sequence[nn.Module]
    ) -> Desk | None:
        """The desk that is there already, where all there is to read is one token: that is a step like any other."""
        if prompt.shape[1] > 1 or state.length:
            return None
        self._forget_what_is_stale(parts)
        desk = self._desk(state, lines[0], len(lines), need, make=False)
        alike = desk is not None and len(tensors(state.past)) == len(desk.standing.loose)
        return desk if alike else None

    def _read(self, prompt: Tensor, state: State, parts: Sequence[nn.Module]) -> tuple[Tensor, State]:
        """In one call, where a prompt of its size has been read before, by the model as it is now."""
        self._forget_what_is_stale(parts)
        self._fresh_pool(prompt.device)
        new = state.length == 0 and state.memory is None and state.lengths is None and not tensors(state.past)
        place = self.prompts.find(self.model, prompt, self.pool) if new and prompt.shape[1] > 1 else None
        return self(prompt, state) if place is None else place.read(prompt)

    def _fresh_pool(self, device: torch.device) -> None:
        """Memory that no graph holds any more is not to be shared."""
        if device.type == "cuda" and not (self.desks or self.sources.made or self.prompts.made):
            self.pool = torch.cuda.graph_pool_handle()

    def _write(self, desk: Desk, live: list[Line]) -> None:
        """Until all are done. The books of some words are kept while the device is at the next."""
        going, said = live, live[0].said
        told: tuple[list[Line], Tensor] | None = None
        while going:
            steps = min(self.every, max(line.limit for line in going) - said)
            desk.go(steps)
            said += steps
            if told is not None:
                _keep_books(*told)
            news, ones = desk.look(steps)
            told = live, news
            stay = [place for place, line in enumerate(live) if ones[place]]
            going = [live[place] for place in stay]
            if going and len(stay) <= desk.standing.sentences // 2:
                desk, live = self._smaller(desk, live, stay)
        if told is not None:
            _keep_books(*told)

    def _smaller(self, desk: Desk, live: list[Line], stay: list[int]) -> tuple[Desk, list[Line]]:
        """A desk for those who stay, where half are gone. One is made only where three quarters are."""
        old = desk.standing
        make = len(stay) <= old.sentences // 4
        smaller = self._desk(State(old.memory, old.past), live[0], len(stay), old.capacity, make)
        if smaller is None:
            return desk, live
        smaller.take(desk, _filled(stay, smaller.standing.sentences, old.clock.device), len(stay))
        return smaller, [live[place] for place in stay]

    def _desk(self, state: State, line: Line, rows: int, need: int, make: bool = True) -> Desk | None:
        """The one of this size; one that is not there may be made. None: there is none."""
        capacity, source = roomy(need, 32), roomy(length_of(state.memory), 16)
        capacity = min(capacity, self.model.longest or capacity)
        sentences = doubled(rows)
        size = (sentences, capacity, source, line.alike)
        desk = self.desks.pop(size, None)
        if desk is None and make and not self.broken:
            desk = self._make(state, line, sentences, capacity, source)
        if desk is not None:
            self.desks[size] = desk  # last: used just now
        return desk

    def _make(self, state: State, line: Line, sentences: int, capacity: int, source: int) -> Desk | None:
        while len(self.desks) >= DESKS:
            del self.desks[next(iter(self.desks))]
        width = line.how.keep
        try:
            standing = Standing(
                state, sentences=sentences, width=width, capacity=capacity, source=source, kernels=self.kernels
            )
            desk = Desk(self.model, line, standing, self.every)
            self._fresh_pool(standing.clock.device)
            desk.replay = self.record(desk.work, self.pool)
        except torch.OutOfMemoryError:
            return None  # the next one may be smaller
        except Exception as error:
            found = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
            if self.kernels is not None:
                self.kernels = None
                self._warn(f"be captured in our own kernels ({found}); PyTorch's are taken")
                return self._make(state, line, sentences, capacity, source)
            self.broken = True
            self._warn(f"be captured ({found}); it is searched word by word, which is slower and says the same")
            return None
        self.captures += 1
        self._forget_what_is_stale(parts_of(self.model))  # a table of positions may have grown in the first steps
        return desk

    def _warn(self, what: str) -> None:
        warnings.warn(f"the steps of this {type(self.model).__name__} could not {what}", stacklevel=2)

    def _suits(
        self, state: State, prompt: Tensor, lines: Sequence[Line], need: int, parts: Sequence[nn.Module]
    ) -> bool:
        how = lines[0].how
        return (
            self._able(prompt.device, parts)
            and type(self.model).step is Autoregressive.step
            and how.columns > 0
            and getattr(how, "tell", None) is None
            and all(line.alike == lines[0].alike and not line.prefix for line in lines)
            and all(line.how.penalty is how.penalty for line in lines)
            and all(getattr(apply, "__module__", "") == known.__name__ for apply in lines[0].filters)
            and state.lengths is None
            and need <= (self.model.longest or need)
            and max(line.limit for line in lines) > 1
        )

    def _able(self, device: torch.device, parts: Sequence[nn.Module]) -> bool:
        return (
            not self.broken
            and _possible(self.record, device)
            and is_current(device)
            and not torch.is_autocast_enabled(device.type)
            and not (hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
            and not any(map(meddled, parts))
        )

    def _forget_what_is_stale(self, parts: Sequence[nn.Module]) -> None:
        """A graph knows addresses, and what was said when it was captured: where weights were moved, replaced or
        trained on, or settings changed, it is of no use."""
        now = Likeness(parts)
        if self.like is None or not now.same(self.like):
            self.desks.clear()
            self.sources.forget()
            self.prompts.forget()
            self.like = now


def _again(model: Autoregressive, record: Record, every: int, kernels: Any) -> Captured:
    return Captured(model, record, every, import_module(kernels) if isinstance(kernels, str) else kernels)


def capture(model: M, record: Record = captured, every: int = EVERY, kernels: Kernels | None = None) -> M:
    """Prepares a model that is only asked from now on: on a GPU, its searches go ahead by themselves, in our own
    `kernels` where they are given. What does not write, and what is elsewhere, stays as it is."""
    if isinstance(model, Autoregressive) and _possible(record, next(model.parameters()).device):
        notice_optimizers()
        step = Captured(model, record, every, kernels)
        model.step, model.start = step, step.start  # type: ignore[method-assign]
    return model


def _filled(places: Sequence[int], room: int, device: torch.device) -> Tensor:
    """The places, and the last of them again and again."""
    return torch.tensor([*places, *[places[-1]] * (room - len(places))], device=device)


def _keep_books(lines: Sequence[Line], told: Tensor) -> None:
    """Line by line and word by word, as if they had been searched for here; rows are counted as if the finished had
    left at once."""
    how, eos = lines[0].how, lines[0].eos
    for step in told:
        row = 0
        for line, (ended, alive) in zip(lines, how.books(step, eos), strict=False):
            if not line.going:
                continue
            width = len(line.alive)
            if width < how.keep:  # the first words: all follow the only one there is
                ended, alive = ([(total, 0, word) for total, _, word in some] for some in (ended, alive))
            line.follow(ended, alive, row)
            row += width
