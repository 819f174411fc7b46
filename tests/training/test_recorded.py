"""Steps that were recorded are the steps that they were recorded of, bit for bit. Without a GPU a recording does the
work again on its fixed places; everything else is the same. REGARD_DEVICE=cuda replays graphs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_full_backward_hook

from regard.config import TrainConfig
from regard.config.task import MaskedTask, RewriteTask
from regard.core.watch import watch
from regard.data.batch import Batch
from regard.data.series import Batch as SeriesBatch
from regard.data.stream import Excerpts
from regard.errors import ConfigError, Diverged
from regard.fast import quicken
from regard.models import build, schema
from regard.tasks import Loss, Steady
from regard.tasks.language import Language
from regard.tasks.masked import Masked, MaskedBatch
from regard.tasks.rewrite import Rewrite
from regard.tasks.series import KINDS, Series
from regard.training import Run, settle, start
from regard.training.log import Log, read_metrics
from regard.training.loop import Steps, added, learning, unrecordable
from regard.training.recorded import Act, Graphs, Recorded, Recorder, form_of, unsteady
from regard.training.state import rng_tensors
from regard.weights import weights

DEVICE = os.environ.get("REGARD_DEVICE", "cpu")
if DEVICE == "cuda":
    torch.backends.cudnn.allow_tf32 = False  # else its recurrent layers round otherwise than all the rest
VOCAB = 20


class Again:
    """A recording without a GPU: the same work on the same places."""

    def rehearse(self, act: Act) -> None:
        act()

    def record(self, act: Act) -> Act:
        return act


class Silent(Again):
    """As a capture that fails: it cannot be ended either."""

    def record(self, act: Act) -> Act:
        try:
            raise RuntimeError("operation not permitted\nwhen nobody listens")
        finally:
            raise RuntimeError("the recording was spoilt")


def recorder() -> Recorder:
    return Again() if DEVICE == "cpu" else Graphs()


# ---- batches of each kind, a function of their number: three shapes that come again


def words(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(4, VOCAB, shape))


class Pairs(Rewrite):
    fingerprint = "pairs"

    def __init__(self, **settings: Any) -> None:
        self.settings = RewriteTask(**settings)

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Batch:
        chance = random.Random(step)
        longest = 4 + step % 3

        def some() -> list[list[int]]:
            lengths = [longest, *(chance.randint(2, longest) for _ in range(4))]
            return [[1, *(chance.randint(4, VOCAB - 1) for _ in range(length)), 2] for length in lengths]

        return Batch.of(some(), some(), range(5 * step, 5 * step + 5))

    def epoch(self, step: int, world: int = 1) -> float:
        return step / 10


class Texts(Language):
    """Along lanes of which each is as long as four windows; every second epoch begins where nothing goes on."""

    fingerprint = "texts"

    def __init__(self) -> None:
        self.order = "lanes"
        self.windows = type("Windows", (), {"context": 0})()

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Excerpts:
        starts = tuple(100 * (step // 4) + 6 * (step % 4) + 1000 * row for row in range(3))
        return Excerpts(words(3, 7, seed=step), None, starts)

    def epoch(self, step: int, world: int = 1) -> float:
        return step / 10


class Hidden(Masked):
    fingerprint = "hidden"

    def __init__(self) -> None:
        self.settings = MaskedTask()

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> MaskedBatch:
        length, chosen = 6 + step % 3, 5 + step % 2
        shown = words(4, length, seed=step)
        real = torch.arange(length) < torch.tensor([length, length - 1, 3, 5])[:, None]
        at = torch.arange(chosen) * length // 2
        random = torch.arange(4) % 2
        segments = (torch.arange(length) > 2).long().expand(4, -1).contiguous()
        return MaskedBatch(
            shown, real, segments, at, shown.flatten()[at], random, (4 * step, 4 * step + 1), 1.5, chosen
        )

    def epoch(self, step: int, world: int = 1) -> float:
        return step / 10


class Tones(Series):
    fingerprint = "tones"

    def __init__(self) -> None:
        self.kind = KINDS["label"]

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> SeriesBatch:
        length = 8 + step % 3
        x = words(4, length, 2, seed=step).float()
        real = torch.arange(length) < torch.tensor([length, length - 2, 4, length])[:, None]
        return SeriesBatch(x, real, words(4, seed=step) % 3, real, tuple(range(4)), 4, False)

    def epoch(self, step: int, world: int = 1) -> float:
        return step / 10


SYSTEMS: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "transformer": ("transformer", {"vocab": VOCAB, "dim": 16, "heads": 2, "layers": 2, "hidden": 32}, Pairs),
    "seq2seq": ("seq2seq", {"vocab": VOCAB, "dim": 12, "embedding": 8}, Pairs),
    "hard attention": ("seq2seq", {"vocab": VOCAB, "dim": 12, "embedding": 8, "choice": "hard"}, Pairs),
    "gpt": ("gpt", {"vocab": VOCAB, "dim": 16, "heads": 2, "layers": 1, "context": 16}, Texts),
    "bert": ("bert", {"vocab": VOCAB, "dim": 16, "heads": 2, "layers": 1, "hidden": 32, "head": "pretrain"}, Hidden),
    "tcn": ("tcn", {"inputs": 2, "labels": 3, "dim": 8, "levels": 2, "dropout": 0.2}, Tones),
    "recurrent, along lanes": ("recurrent", {"vocab": VOCAB, "dim": 12, "embedding": 8}, Texts),
}


def config(**changes: Any) -> TrainConfig:
    usual = {"steps": 40, "threads": 1, "device": DEVICE, "precision": "fp32", "save_every": 100, "log_every": 3}
    return TrainConfig(**{**usual, **changes})


class Trial:
    """A run without its loop."""

    def __init__(self, folder: Path, name: str, *, by: Recorder | None = None, most: int = 64, **changes: Any) -> None:
        system, sizes, task = SYSTEMS[name]
        settings = config(**changes)
        device = settle(settings)
        model = build(system, schema(system)(**sizes))
        self.task, self.config, self.said = task(), settings, []
        self.run: Run = start(folder, model, settings, device=device, dim=16)
        folder.mkdir(exist_ok=True)
        self.log = Log(folder, settings, self.said.append)
        self.steps = Steps(self.run, self.task, settings, self.log)
        self.steps.learn = added(self.run, settings, self.task.loss)
        if by is not None:
            cost = added(self.run, settings, self.task.cost)
            self.steps.learn = Recorded(self.run.model, self.task, cost, by, self.said.append, most)

    @property
    def recorded(self) -> Recorded:
        assert isinstance(self.steps.learn, Recorded)
        return self.steps.learn

    @property
    def warnings(self) -> list[str]:
        return [text for text in self.said if text.startswith("warning")]

    def go(self, steps: int) -> Trial:
        for _ in range(steps):
            self.steps()
        self.steps.settle()
        return self

    def end(self) -> dict[str, Any]:
        slots = [slot for memory in self.run.optimizers["adamw"].state.values() for slot in memory.values()]
        carry = [*self.run.carry["past"]] if self.run.carry and "past" in self.run.carry else []
        tensors = [*weights(self.run.model).values(), *slots, *rng_tensors().values(), *carry]
        return {"tensors": tensors, "interval": {k: v for k, v in self.run.interval.items() if k != "seconds"}}


Make = Callable[..., Trial]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Make]:
    """The random generators are the process's own: one has to end before the next is made."""
    made: list[Trial] = []

    def make(name: str, **how: Any) -> Trial:
        made.append(Trial(tmp_path / str(len(made)), name, **how))
        return made[-1]

    yield make
    for one in made:
        one.log.__exit__()


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Bit for bit; on a GPU, which adds up in any order, nearly."""

    def equal(a: Tensor, b: Tensor) -> bool:
        exact = DEVICE == "cpu" or not a.is_floating_point()
        return torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-3, atol=1e-4)

    return all(equal(a, b) for a, b in zip(one, other, strict=True))


# ---- recorded is plain


@pytest.mark.parametrize("name", SYSTEMS)
def test_recorded_steps_are_the_plain_ones(trial: Make, name: str) -> None:
    plain = trial(name).go(8).end()
    taped = trial(name, by=recorder()).go(8)
    if DEVICE == "cuda" and not getattr(taped.run.model, "recordable", True):
        pytest.skip("on a GPU its layers are one kernel each, which rounds otherwise, and it is not recorded there")
    assert 0 < len(taped.recorded.takes) < 8
    assert not taped.warnings
    found = taped.end()
    assert found["interval"] == pytest.approx(plain["interval"], rel=0 if DEVICE == "cpu" else 1e-3)
    assert same(found["tensors"], plain["tensors"])


@pytest.mark.parametrize("most", [0, 1, 2])
def test_micro_batches_may_be_recorded_or_not(trial: Make, most: int) -> None:
    """Gradients add up all the same, wherever they were made."""
    plain = trial("transformer", accumulate=2).go(4).end()
    taped = trial("transformer", by=recorder(), most=most, accumulate=2).go(4)
    assert len(taped.recorded.takes) == most
    told = f"batches of more than {most} shapes have come; steps of further ones are not recorded"
    assert [line for line in taped.said if "shapes have come" in line] == [told] * (most > 0)  # once
    assert same(taped.end()["tensors"], plain["tensors"])


def test_what_cannot_be_recorded_is_said_once_and_done_plainly(trial: Make) -> None:
    plain = trial("transformer").go(4).end()
    taped = trial("transformer", by=Silent()).go(4)
    assert taped.warnings == ["warning: steps are not recorded (operation not permitted); training goes on without"]
    assert same(taped.end()["tensors"], plain["tensors"])


def test_a_run_that_goes_on_records_anew_and_is_the_same(trial: Make) -> None:
    whole = trial("recurrent, along lanes", by=recorder()).go(7).end()
    parts = trial("recurrent, along lanes", by=recorder()).go(3)
    before = parts.recorded
    parts.steps.learn = Recorded(parts.run.model, parts.task, before.work, recorder(), parts.said.append)
    assert same(parts.go(4).end()["tensors"], whole["tensors"])


def test_a_carry_is_not_overwritten_by_the_next_step(trial: Make) -> None:
    made = trial("recurrent, along lanes", by=recorder()).go(2)
    held = made.run.carry["past"]
    before = [tensor.clone() for tensor in held]
    made.go(1)
    assert same(held, before)
    assert not torch.equal(made.run.carry["past"][0], before[0])


def test_who_learns_nothing_has_no_gradient(trial: Make) -> None:
    """So that an optimizer leaves it alone, as it does in a plain step."""
    made = trial("gpt", by=recorder())
    idle = nn.Parameter(torch.ones(3, device=made.run.device))
    made.run.model.register_parameter("idle", idle)
    for _ in range(2):
        made.recorded(made.steps.feed(0), None)
        assert idle.grad is None
        assert all(p.grad is not None for n, p in made.run.model.named_parameters() if n != "idle")


def test_rehearsals_leave_buffers_as_they_were() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("calls", torch.zeros(()))

    class Sum(Steady):
        def cost(self, model: nn.Module, batch: Excerpts, before: Any) -> Loss:
            model.calls.add_(1)
            return Loss(model.weight * batch.text.sum(), 0)

    model, task = Counting().to(DEVICE), Sum()

    def work(batch: Any, before: Any) -> Loss:
        loss = task.cost(model, batch, before)
        loss.total.backward()
        return loss

    learn = Recorded(model, task, work, recorder())
    for number in range(1, 4):
        loss = learn(Excerpts(torch.full((1, 2), number, device=DEVICE), None, (number,)), None)
        assert (float(loss.total), loss.count, float(model.calls)) == (2 * number, 1, number)
    assert float(model.weight.grad) == 2 + 4 + 6


def test_what_was_made_once_is_told(trial: Make) -> None:
    made = trial("transformer", by=recorder()).go(4)
    assert made.steps.about() == "recorded 3 shapes"
    assert trial("transformer").go(1).steps.about() == ""


# ---- forms


def test_a_form_is_all_but_the_numbers() -> None:
    batch = Hidden().batch("train", 0)
    others = Hidden().batch("train", 6)
    assert batch.ids != others.ids
    assert form_of(batch, None) == form_of(others, None)
    assert form_of(batch, None) != form_of(Hidden().batch("train", 1), None)
    assert form_of(batch, None) != form_of(replace(batch, usual=2.0), None)
    assert form_of(batch, None) != form_of(batch, (torch.zeros(1),))
    assert form_of(batch, (torch.zeros(1),)) != form_of(batch, (torch.zeros(2),))
    assert form_of(batch, (torch.zeros(1),)) == form_of(batch, (torch.ones(1),))


# ---- whether


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU can")
def test_a_cpu_records_nothing(trial: Make) -> None:
    made = trial("transformer")
    for record in ("auto", "never"):
        assert not isinstance(learning(made.run, made.task, config(record=record)), Recorded)
    with pytest.raises(ConfigError, match=r'^train\.record = "always", but only a GPU replays what .*; write "auto"$'):
        learning(made.run, made.task, config(record="always"))


class Outspoken(Pairs):
    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> Loss:
        print(batch.ids)
        return super().loss(model, batch, carry)


def test_what_keeps_steps_from_being_recorded(trial: Make) -> None:
    made = trial("transformer")
    made.run.device = torch.device("cuda")  # nothing is asked of it
    assert unrecordable(made.run, made.task) == ""
    sampled = Pairs(forcing=1.0, forcing_end=0.5)
    for task in (sampled, Outspoken()):
        assert unrecordable(made.run, task) == "the loss of this task may go another way with each batch"
    with watch(made.run.model):
        assert unrecordable(made.run, made.task) == "somebody watches Attention 'encoder.0.attention'"
    normed = {**SYSTEMS["transformer"][1], "normalise": "batch"}
    made.run.model = build("transformer", schema("transformer")(**normed))
    assert unrecordable(made.run, made.task) == "its batch norms would count what fills a batch up"


def test_on_another_than_the_current_gpu_nothing_is_recorded(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial("transformer")
    made.run.device = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    said = "cuda:1 is not the current GPU; call torch.cuda.set_device(1) before"
    assert unrecordable(made.run, made.task) == said
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert unrecordable(made.run, made.task) == ""


class Counting(nn.Linear):
    """Somebody's own: it does not always do the same."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * (self.calls % 2)


class Constant(nn.Linear):
    """Likewise, but it does."""

    recordable = True


class Later(Constant):
    """Who wrote this may not have thought of it."""


def on_norm(way: str) -> Callable[[nn.Module], Any]:
    return lambda model: getattr(model.decoder[1].around_cross.norm, way)(lambda *_: None)


def on_weight(way: str) -> Callable[[nn.Module], Any]:
    return lambda model: getattr(model.words.weight, way)(lambda *_: None)


OWN: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    **{
        way: (on_norm(way), "a hook on LayerNorm 'decoder.1.around_cross.norm' wants to be called at each step")
        for way in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
    },
    **{
        way: (on_weight(way), "a hook on 'words.weight' wants to be called at each step")
        for way in ("register_hook", "register_post_accumulate_grad_hook")
    },
    "all": (
        lambda model: register_module_full_backward_hook(lambda *_: None),
        "a hook on all modules wants to be called at each step",
    ),
    "a method": (
        lambda model: setattr(model.head, "forward", model.head.forward),
        "a method of Head 'head' is somebody's own",
    ),
    "a class": (
        lambda model: setattr(model, "norm", Counting(16, 16)),
        "Counting 'norm' may go another way with each batch; where it does not, write recordable = True into its class",
    ),
    "a class of a class": (
        lambda model: setattr(model, "norm", Later(16, 16)),
        "Later 'norm' may go another way with each batch; where it does not, write recordable = True into its class",
    ),
    "a class that may be": (lambda model: setattr(model, "norm", Constant(16, 16)), ""),
}


@pytest.mark.parametrize("way", OWN)
def test_what_is_somebodys_own_is_asked_at_each_step(trial: Make, way: str) -> None:
    model = trial("transformer").run.model
    hang, why = OWN[way]
    hung = hang(model)
    try:
        assert unsteady(model) == why
    finally:
        if hung is not None:
            hung.remove()


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_but_recurrent_ones_can_be_recorded_while_it_learns(trial: Make, name: str) -> None:
    model = trial(name).run.model
    quicken(model)
    assert bool(unsteady(model)) == name.startswith("recurrent")


# ---- a step ahead


class Poisoned(Pairs):
    def cost(self, model: nn.Module, batch: Batch, before: Any) -> Loss:
        loss = super().cost(model, batch, before)
        return replace(loss, total=loss.total * torch.nan) if batch.ids[0] == 25 else loss


def test_a_step_ahead_is_the_same_step(trial: Make) -> None:
    plain = trial("transformer").go(8)
    found = plain.end()
    ahead = trial("transformer")
    ahead.steps.ahead = True
    waiting = []
    for _ in range(8):
        ahead.steps()
        waiting.append(len(ahead.steps.waiting))
    assert waiting == [1, 1, 0, 1, 1, 0, 1, 1]  # at every third the log has a line
    ahead.go(0)
    assert ahead.end()["interval"] == pytest.approx(found["interval"], rel=0 if DEVICE == "cpu" else 1e-3)
    assert same(ahead.end()["tensors"], found["tensors"])
    logs = [read_metrics(one.run.folder / "metrics.jsonl") for one in (plain, ahead)]
    assert [without_times(line) for line in logs[0]] == [without_times(line) for line in logs[1]]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second", "seconds_per_step")}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_ahead_that_is_no_number_changes_nothing_and_is_named(trial: Make, optimizer: str) -> None:
    made = trial("transformer", log_every=100, optimizer=optimizer)
    made.steps.ahead, made.steps.task = True, Poisoned()
    made.steps.learn = added(made.run, made.config, Poisoned().loss)
    for _ in range(5):
        made.steps()
    model, memory = made.run.model, made.run.optimizers[optimizer].state.values()
    before = [t.clone() for t in (*model.parameters(), *(slot for slots in memory for slot in slots.values()))]
    made.steps()
    after = [*model.parameters(), *(slot for slots in memory for slot in slots.values())]
    assert same(before, after)
    with pytest.raises(
        Diverged, match=r"^step 6: loss nan, gradient norm nan on the batch in nan-00000006\.json \(ids 25"
    ):
        made.steps()
    assert made.run.step == 5
