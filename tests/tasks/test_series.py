"""Saying something of series: losses by hand, chance levels by models that know nothing, anchors of real music."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.lengths import in_order
from regard.data.numbers import Recorded, read_numbers
from regard.data.series import Made, Source, Stored
from regard.data.text import BadLines
from regard.tasks.classify import Classified
from regard.tasks.series import KINDS, Frame, Series, measure, measured, predict

KIND = pytest.mark.parametrize("kind", KINDS)


class Toy(nn.Module):
    """A system of numbers, as small as can be."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(channels, 6, batch_first=True)
        self.labels = nn.Linear(6, outputs)

    def forward(self, source: None, real: None, x: Tensor) -> tuple[Tensor, None]:
        return self.rnn(x)[0], None

    def conclude(self, x: Tensor, last: Tensor | None) -> Tensor:
        hidden, _ = self(None, None, x)
        return hidden[:, -1] if last is None else hidden[torch.arange(len(hidden)), last]


class Straight(Toy):
    """What it has in mind is what it hears, and what it says is a straight function of that."""

    def __init__(self, weight: Any, bias: Any) -> None:
        nn.Module.__init__(self)
        weight, bias = torch.as_tensor(weight, dtype=torch.float32), torch.as_tensor(bias, dtype=torch.float32)
        self.labels = nn.Linear(weight.shape[1], weight.shape[0])
        self.labels.weight.data, self.labels.bias.data = weight, bias

    def forward(self, source: None, real: None, x: Tensor) -> tuple[Tensor, None]:
        return x, None


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[str], Stored]:
    """Nine uneven series of two channels, of any kind."""

    def make(kind: str) -> Stored:
        lengths, dice = np.array([5, 2, 9, 4, 4, 7, 3, 9, 6], np.int64), np.random.default_rng(3)
        x = dice.integers(0, 2, (lengths.sum(), 2), np.uint8)
        y = {
            "number": dice.random(9), "label": np.arange(9) % 3, "labels": dice.integers(0, 3, lengths.sum())
        }  # fmt: skip
        found = Recorded(x, lengths, y.get(kind), np.arange(1, 10))
        return Stored.build(tmp_path / kind, found, kind, bad=BadLines())  # type: ignore[arg-type]

    return make


def by_hand(model: Toy, source: Source) -> list[list[float]]:
    """What each output that counts costs, series by series, each read alone."""
    found = []
    for place in range(len(source)):
        batch = source.batch(np.array([place]))
        said, row = model.labels(model(None, None, batch.x)[0])[0], []
        for step in np.flatnonzero(batch.scored[0]):
            wanted = batch.wanted[0] if batch.wanted.dim() == 1 else batch.wanted[0, step]
            match source.kind:
                case "number":
                    cost = (said[step, 0] - wanted) ** 2
                case "keys":
                    shares = said[step].sigmoid()
                    cost = -(wanted * shares.log() + (1 - wanted) * (1 - shares).log()).sum()
                case _:
                    cost = -said[step].log_softmax(-1)[wanted]
            row.append(float(cost))
        found.append(row)
    return found


@KIND
@torch.no_grad()
def test_the_loss_is_the_sum_over_outputs_of_series_read_alone(kind: str, stored: Callable[[str], Stored]) -> None:
    source = stored(kind)
    model, task = Toy(2, source.outputs), Series(source, {"valid": source}, tokens=30)
    costs = by_hand(model, source)
    batch = source.batch(np.array([2, 1, 8]))
    loss = task.loss(model, batch, None)
    assert loss.total.item() == pytest.approx(sum(sum(costs[place]) for place in (2, 1, 8)), rel=1e-5)
    assert loss.count == batch.tokens == sum(len(costs[place]) for place in (2, 1, 8))
    found = task.evaluate(model, "valid")["loss"]
    assert found == pytest.approx(np.mean([cost for row in costs for cost in row]), rel=1e-5)
    assert task.evaluate(model, "test") == {}


@KIND
def test_what_padding_says_moves_no_weight(kind: str, stored: Callable[[str], Stored]) -> None:
    source = stored(kind)
    model, task = Toy(2, source.outputs), Series(source, {}, tokens=30)
    batch = source.batch(np.array([2, 1]))
    other = replace(batch, x=batch.x + 9 * ~batch.real[..., None])
    grads = []
    for one in (batch, other):
        grads.append(torch.autograd.grad(task.loss(model, one, None).total, list(model.parameters())))
    for one, another in zip(*grads, strict=True):
        torch.testing.assert_close(one, another)


@KIND
def test_batches_are_functions_of_their_step_and_show_everything(kind: str, stored: Callable[[str], Stored]) -> None:
    task, again = (Series(stored(kind), {}, tokens=20, rows=2, seed=5) for _ in range(2))
    batches = [task.batch("train", step) for step in range(len(task.turns))]
    assert sorted(number for batch in batches for number in batch.ids) == list(range(1, 10))
    assert all(len(batch.x) <= 2 and batch.x.shape[0] * batch.x.shape[1] <= 20 for batch in batches)
    assert all(torch.equal(again.batch("train", step).x, batch.x) for step, batch in enumerate(batches))
    assert task.epoch(len(batches)) == 1
    assert task.fingerprint == again.fingerprint
    with pytest.raises(ValueError, match="only training draws batches by step"):
        task.batch("valid", 0)


@KIND
def test_a_measure_says_what_it_is(kind: str, stored: Callable[[str], Stored]) -> None:
    source = stored(kind)
    found = measure(Toy(2, source.outputs), source, tokens=40)
    assert tuple(found) == measured(kind)
    assert all(value.definition for value in found.values())  # type: ignore[attr-defined]
    count = {"number": 9, "label": 9, "labels": 49, "keys": 40}[kind]
    assert str(count) in found["loss"].definition  # type: ignore[attr-defined]


def test_accuracy_is_the_share_of_labels_told_right(stored: Callable[[str], Stored]) -> None:
    for kind in ("label", "labels"):
        source = stored(kind)
        always_one = Straight(torch.zeros(3, 2), [0, 1, 0])
        wanted = torch.cat(
            [batch.wanted if kind == "label" else batch.wanted[batch.scored]
             for batch in map(source.batch, in_order(source.lengths, tokens=20))]
        )  # fmt: skip
        found = measure(always_one, source, tokens=20)
        assert found["accuracy"] == pytest.approx(100 * (wanted == 1).float().mean().item())


# ---- chance


def test_always_to_say_one_is_the_chance_level_of_adding() -> None:
    """1/6 = 2 · 1/12, the spread of a sum of two; not the 0.1767 that the paper prints."""
    found = measure(Straight([[0, 0]], [1]), Made("adding", "test", 40_000, 3), tokens=100_000)
    assert found["loss"] == pytest.approx(1 / 6, rel=0.01)
    assert "1/6 = 0.1667" in found["loss"].definition  # type: ignore[attr-defined]
    for other in (0.9, 1.1):
        assert (
            measure(Straight([[0, 0]], [other]), Made("adding", "test", 40_000, 3), tokens=100_000)["loss"]
            > found["loss"]
        )


@pytest.mark.parametrize(("length", "level"), [(500, 0.03999), (1000, 0.02039), (2000, 0.01029)])
def test_blanks_and_guesses_are_exactly_the_chance_level_of_copying(length: int, level: float) -> None:
    """Sure of the blank until the digits are due, at the second nine; then all eight are alike to it."""

    class Guesses(Straight):
        def __init__(self) -> None:
            super().__init__(torch.eye(10), torch.zeros(10))

        def forward(self, source: None, real: None, x: Tensor) -> tuple[Tensor, None]:
            due = (x[..., 0] == 9).cumsum(1) > 1
            blank, digits = torch.full((10,), -1e4), torch.full((10,), -1e4)
            blank[0], digits[1:9] = 0, 0
            return torch.where(due[..., None], digits, blank), None

    found = measure(Guesses(), Made("copy", "test", 20, length), tokens=20_000)
    assert found["loss"] == pytest.approx(10 * math.log(8) / (length + 20), rel=1e-5)
    assert round(found["loss"], 5) == level
    assert f"{level:.5f}" in found["loss"].definition  # type: ignore[attr-defined]
    assert found["recalled"] == pytest.approx(100 / 8, abs=5)
    assert found["accuracy"] == pytest.approx(100 * (length + 10 + 10 * found["recalled"] / 100) / (length + 20))


def test_what_is_recalled_are_the_digits_alone() -> None:
    class Remembers(Straight):
        def __init__(self) -> None:
            super().__init__(torch.eye(10), torch.zeros(10))

        def forward(self, source: None, real: None, x: Tensor) -> tuple[Tensor, None]:
            told = torch.zeros(x.shape[:2], dtype=torch.int64)
            told[:, -10:] = x[:, :10, 0].long()
            return 50 * F.one_hot(told, 10).float(), None

    found = measure(Remembers(), Made("copy", "test", 20, 30), tokens=2000)
    assert found["loss"] < 1e-6
    assert (found["accuracy"], found["recalled"]) == (100, 100)
    blanks = measure(Straight(torch.zeros(10, 1), 9 * torch.eye(10)[0]), Made("copy", "test", 20, 30), tokens=2000)
    assert blanks["recalled"] == 0
    assert blanks["accuracy"] == pytest.approx(100 * 40 / 50)
    assert measured("labels", blank=True) == tuple(found)


def test_a_guess_among_four_is_the_chance_level_of_order() -> None:
    found = measure(Straight(torch.zeros(4, 8), torch.zeros(4)), Made("order", "test", 100, 30), tokens=2000)
    assert found["loss"] == pytest.approx(math.log(4))
    assert "ln 4 = 1.3863" in found["loss"].definition  # type: ignore[attr-defined]


# ---- music


def logit(share: Any) -> np.ndarray:
    share = np.clip(share, 1e-4, 1 - 1e-4)
    return np.log(share) - np.log1p(-share)


@pytest.mark.data("poly_music")
@pytest.mark.parametrize(("name", "alone", "copied"), [("JSB_Chorales", 11.09, 13.71), ("Nottingham", 10.26, 6.83)])
def test_anchors_of_real_music(
    name: str, alone: float, copied: float, data_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """How often each key is down in training, whatever came before; and each key as it was, with the two shares of
    training at which a key stays down and comes down. Both by hand first, and then by models that say so.
    """
    pytest.importorskip("scipy.io", reason="reading .mat needs regard[music]")
    path = data_dir("poly_music") / f"{name}.mat"
    found = {split: read_numbers([path], split, longest=10_000, bad=BadLines()) for split in ("train", "test")}
    held = Stored.build(tmp_path / "test", found["test"], "keys", bad=BadLines())
    pieces = np.split(found["train"].x.astype(bool), np.cumsum(found["train"].lengths)[:-1])
    before, after = (np.concatenate([piece[part] for piece in pieces]) for part in (slice(-1), slice(1, None)))
    frequencies = Straight(np.zeros((88, 88)), logit(after.mean(0)))
    assert measure(frequencies, held, tokens=20_000)["loss"] == pytest.approx(alone, abs=0.01)
    stays, comes = logit(after[before].mean()), logit(after[~before].mean())
    again = measure(Straight((stays - comes) * np.eye(88), np.full(88, comes)), held, tokens=20_000)
    assert again["loss"] == pytest.approx(copied, abs=0.01)
    assert f"{int((held.lengths - 1).sum())} frames, all but a piece's first" in again["loss"].definition  # type: ignore[attr-defined]


# ---- what a user asks


@KIND
@torch.no_grad()
def test_a_series_is_answered_alone_as_in_company(kind: str, stored: Callable[[str], Stored]) -> None:
    source = stored(kind)
    model, names = Toy(2, source.outputs), tuple("abc"[: source.outputs])
    examples = [np.random.default_rng(n).random((n, 2), np.float32) for n in (4, 1, 7, 3)]
    together = predict(model, kind, names, examples, tokens=8)
    for example, found in zip(examples, together, strict=True):
        said = model.labels(model(None, None, torch.from_numpy(example)[None])[0])[0]
        match found:
            case float():
                assert found == pytest.approx(said[-1, 0].item(), rel=1e-5)
            case Classified():
                assert found.label == names[int(said[-1].argmax())]
                assert list(found.probabilities.values()) == pytest.approx(said[-1].softmax(-1).tolist(), rel=1e-4)
            case list():
                assert [step.label for step in found] == [names[int(step.argmax())] for step in said]
            case Frame():
                assert found.keys == tuple(name for name, one in zip(names, said[-1], strict=True) if one > 0)
                assert list(found.probabilities.values()) == pytest.approx(said[-1].sigmoid().tolist(), rel=1e-4)
    assert type(together[0]) is {"number": float, "label": Classified, "labels": list, "keys": Frame}[kind]


def test_learning_lowers_every_loss(stored: Callable[[str], Stored]) -> None:
    torch.manual_seed(0)
    for kind in KINDS:
        source = stored(kind)
        model, task = Toy(2, source.outputs), Series(source, {"valid": source}, tokens=100)
        optimizer, before = torch.optim.Adam(model.parameters(), 0.05), task.evaluate(model, "valid")["loss"]
        for step in range(40):
            loss = task.loss(model, task.batch("train", step), None)
            optimizer.zero_grad()
            (loss.total / loss.count).backward()
            optimizer.step()
        assert task.evaluate(model, "valid")["loss"] < 0.8 * before
