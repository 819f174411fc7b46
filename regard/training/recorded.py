"""Steps that are recorded once for each form of a batch and then replayed: one call in place of a thousand, where a GPU
is done with each of its kernels sooner than the host has called the next.

    a batch, what came before ─copy─▶ fixed places ─forward, loss, backward─▶ fixed places ─copy─▶ loss, what is left
                                                          └─▶ gradients, put or added where they have always been

A form is all that the work depends on besides the numbers in its tensors: their shapes, and what else the batch says.
Before it is recorded the work is rehearsed, and everything that this has changed is put back, so that training is what
it would have been. What cannot be recorded is done as it was.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from regard.core.changes import hooked, replaced
from regard.device import record_graph, rehearse
from regard.tasks import Loss, Steady
from regard.training.checkpoint import Say
from regard.training.state import pack, undisturbed, unpack
from regard.weights import Tensors

MOST = 128  # forms that are recorded
REHEARSALS = 2
OF_ONE_BATCH = ("ids", "tokens")  # what a batch says of itself that no cost depends on

Work = Callable[[Any, Any], Loss]  # a batch, what came before -> the loss, its gradients added
Act = Callable[[], None]


class Recorder(Protocol):
    def rehearse(self, act: Act) -> None:
        """Once, so that whatever is made at the first time has been made."""

    def record(self, act: Act) -> Act:
        """What does it again, on the tensors that it found and to those that it left."""


class Graphs:
    """CUDA graphs, all in one pool of memory: only one of them works at a time, and what it leaves lies outside."""

    def __init__(self) -> None:
        self.pool: Any = None

    def rehearse(self, act: Act) -> None:
        rehearse(act)

    def record(self, act: Act) -> Act:
        graph = record_graph(act, self.pool)
        self.pool = graph.pool()
        return graph.replay


@dataclass
class Take:
    """One form: the fixed places of what goes in and comes out, who learns from it, and how it is done again."""

    batch: Any
    before: Any
    given: list[Tensor]  # of both, in order
    loss: Loss
    left: list[Tensor]  # of the loss, in order
    learners: list[nn.Parameter]
    kept: list[Tensor]  # which the model may have replaced since, and which are read all the same
    replay: Act = lambda: None


class Recorded:
    """Learns from a batch as `work` does, by a recording where there is one or can be made."""

    def __init__(
        self, model: nn.Module, task: Steady, work: Work, recorder: Recorder, say: Say = print, most: int = MOST
    ) -> None:
        self.model, self.task, self.work, self.recorder, self.say = model, task, work, recorder, say
        self.room, self.full = most, False
        self.takes: dict[object, Take] = {}
        self.gradients: dict[nn.Parameter, Tensor] = {}  # the fixed place of each

    def __call__(self, batch: Any, carry: Any) -> Loss:
        before = self.task.taken_up(batch, carry)
        loss = self._replayed(batch, before) or self.work(batch, before)
        loss.count, loss.carry = batch.count, self.task.handed_on(batch, loss.carry)
        return loss

    def _replayed(self, batch: Any, before: Any) -> Loss | None:
        fresh = all(parameter.grad is None for parameter in self.model.parameters())
        form = fresh, form_of(batch, before)
        if form not in self.takes and len(self.takes) < self.room:
            self._record(form, batch, before)
        elif form not in self.takes and self.room and not self.full:
            self.full = True
            self.say(f"batches of more than {self.room} shapes have come; steps of further ones are not recorded")
        take = self.takes.get(form)
        if take is None:
            return None
        if not fresh:
            self._open(take.learners)
        for place, tensor in zip(take.given, tensors_of(batch, before), strict=True):
            place.copy_(tensor, non_blocking=True)
        take.replay()
        for parameter in take.learners:
            parameter.grad = self.gradients[parameter]
        return copied(take.loss)

    def _record(self, form: tuple[bool, object], batch: Any, before: Any) -> None:
        fresh, _ = form
        batch, before = replace(batch, **{n: t.clone() for n, t in named(batch).items()}), cloned(before)
        with self._as_it_was():
            loss, learners = self._rehearse(batch, before)
        take = Take(batch, before, tensors_of(batch, before), loss, left_by(loss), learners, [*self.model.buffers()])
        if not fresh:
            self._open(learners)

        def act() -> None:
            with self._put(learners) if fresh else nullcontext():
                for place, tensor in zip(take.left, left_by(self.work(batch, before)), strict=True):
                    place.copy_(tensor)

        try:
            take.replay = self.recorder.record(act)
            self.takes[form] = take
        except RuntimeError as error:
            self.room = 0
            self.takes.clear()
            if fresh:
                self.model.zero_grad()  # what stands there was never computed
            first = error.__context__ or error  # a recording that was spoilt cannot be ended either
            self.say(f"warning: steps are not recorded ({str(first).splitlines()[0]}); training goes on without")
            del first
        if not self.room:
            gc.collect()  # nothing of the graph that was not recorded is to be met again

    def _rehearse(self, batch: Any, before: Any) -> tuple[Loss, list[nn.Parameter]]:
        """What comes out, and which parameters learn from it."""
        found: list[Loss] = []
        for _ in range(REHEARSALS):
            self.model.zero_grad()
            found.clear()  # so that no node of the graph before is met again on another stream
            self.recorder.rehearse(lambda: found.append(copied(self.work(batch, before))))
        return found[0], [parameter for parameter in self.model.parameters() if parameter.grad is not None]

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Gradients, buffers and random generators are afterwards as they were."""
        gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            with undisturbed():
                yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)

    @contextmanager
    def _put(self, learners: Sequence[nn.Parameter]) -> Iterator[None]:
        """The first gradients of an update are put in their places at once: to add each to a zero takes longer. A place
        is where the first recording that has a gradient for it leaves it."""
        for parameter in learners:
            parameter.grad = None
        yield
        for parameter in learners:
            self.gradients.setdefault(parameter, _gradient(parameter))
        later = [parameter for parameter in learners if parameter.grad is not self.gradients[parameter]]
        if later:
            torch._foreach_copy_([self.gradients[p] for p in later], [_gradient(p) for p in later])
        for parameter in later:
            parameter.grad = self.gradients[parameter]

    def _open(self, learners: Sequence[nn.Parameter]) -> None:
        """Brings the gradients so far to their places; where there are none yet, zeros stand there."""
        empty = []
        for parameter in learners:
            if parameter not in self.gradients:
                self.gradients[parameter] = torch.empty_like(parameter)
            place = self.gradients[parameter]
            if parameter.grad is None:
                empty.append(place)
            elif parameter.grad is not place:
                place.copy_(parameter.grad)
            parameter.grad = place
        if empty:
            torch._foreach_zero_(empty)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


# ---- who is not recorded


def unsteady(model: nn.Module) -> str:
    """Why steps of this model cannot be recorded; nothing where they can. A replay calls no Python: whatever somebody
    has hung on a model, or written of his own, would be asked once and never again."""
    if any(vars(hooks)[f"_global_{kind}_hooks"] for kind in ("forward", "forward_pre", "backward", "backward_pre")):
        return "a hook on all modules wants to be called at each step"
    for name, part in model.named_modules():
        if why := _unsteady(part, f"{type(part).__name__} {name!r}" if name else f"{type(part).__name__}"):
            return why
    for name, weight in model.named_parameters():
        if weight._backward_hooks or weight._post_accumulate_grad_hooks:
            return f"a hook on {name!r} wants to be called at each step"
    return ""


def _unsteady(part: nn.Module, it: str) -> str:
    if getattr(part, "minded", False):
        return f"somebody watches {it}"
    if hooked(part):
        return f"a hook on {it} wants to be called at each step"
    if replaced(part):
        return f"a method of {it} is somebody's own"
    if not getattr(part, "recordable", True):
        return "its recurrent layers are one kernel each"
    if isinstance(part, nn.BatchNorm1d):
        return "its batch norms would count what fills a batch up"
    ours = type(part).__module__.split(".")[0] in ("regard", "torch")
    if not (ours or vars(type(part)).get("recordable")):
        return f"{it} may go another way with each batch; where it does not, write recordable = True into its class"
    return ""


# ---- forms, and the tensors in them


def form_of(batch: Any, before: Any) -> object:
    found: Tensors = {}
    said = {part.name: getattr(batch, part.name) for part in fields(batch) if part.name not in OF_ONE_BATCH}
    plain = {name: value for name, value in said.items() if not isinstance(value, Tensor)}
    shape = pack(before, found)
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in (*named(batch).values(), *found.values()))
    return type(batch), repr(plain), repr(shape), shapes


def named(batch: Any) -> Tensors:
    values = {part.name: getattr(batch, part.name) for part in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def held(nested: Any) -> list[Tensor]:
    found: Tensors = {}
    pack(nested, found)
    return [*found.values()]


def tensors_of(batch: Any, before: Any) -> list[Tensor]:
    return [*named(batch).values(), *held(before)]


def left_by(loss: Loss) -> list[Tensor]:
    return [loss.total.detach(), *(part.detach() for part in loss.parts.values()), *held(loss.carry)]


def cloned(nested: Any) -> Any:
    found: Tensors = {}
    shape = pack(nested, found)
    device = next(iter(found.values())).device if found else torch.device("cpu")
    return unpack(shape, {name: tensor.clone() for name, tensor in found.items()}, device)


def copied(loss: Loss) -> Loss:
    """Without its graph, and in places of its own."""
    parts = {name: part.detach().clone() for name, part in loss.parts.items()}
    return Loss(loss.total.detach().clone(), loss.count, parts, cloned(loss.carry))
