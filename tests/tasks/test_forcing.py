"""What a decoder hears while it learns: the true words, its own, or some of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.config.task import RewriteTask
from regard.core.autoregressive import Autoregressive
from regard.models import build, schema
from regard.tasks.forcing import DECAYS, chance_of_truth, coins

BOS, VOCAB = 1, 13
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"dim": 16, "heads": 2, "layers": 2, "hidden": 32},
    "seq2seq": {"dim": 16, "embedding": 12},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "learned positions": ("transformer", {"positions": "learned", "context": 16}),
    "sutskever": ("seq2seq", {"decoder": "sutskever", "cell": "lstm", "layers": 2}),
    "cho": ("seq2seq", {"decoder": "cho"}),
    "bahdanau": ("seq2seq", {}),
    "luong": ("seq2seq", {"decoder": "luong", "score": "general"}),
    "at once": ("seq2seq", {"decoder": "luong", "feeding": False, "window": "local-m", "reach": 1}),
    "hard": ("seq2seq", {"choice": "hard"}),
    "marginal": ("seq2seq", {"decoder": "luong", "feeding": False, "choice": "marginal"}),
}
every_model = pytest.mark.parametrize("name", MODELS)


def make(name: str) -> Autoregressive:
    """Without dropout and in evaluation, so that nothing is drawn; with weights that have something to say."""
    system, settings = MODELS[name]
    model = build(system, schema(system)(vocab=VOCAB, dropout=0.0, **SMALL[system], **settings))
    assert isinstance(model, Autoregressive)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    real = torch.arange(6) < torch.tensor([[6], [4], [1]])
    target = torch.randint(4, VOCAB, (3, 7))
    target[:, 0] = BOS
    return torch.randint(4, VOCAB, (3, 6)) * real, real, target


@every_model
def test_whoever_is_always_told_is_taught_plainly(name: str) -> None:
    """A probability of one tosses no coin and takes the plain way, bit for bit; coins that all fall so come close."""
    model, (source, real, target) = make(name), batch()
    before = torch.get_rng_state()
    assert coins(target, 1.0) is None
    assert torch.equal(before, torch.get_rng_state())
    plain, _ = model(source, real, target)
    assert torch.equal(model(source, real, target, coins(target, 1.0))[0], plain)
    always, _ = model(source, real, target, torch.ones_like(target, dtype=torch.bool))
    torch.testing.assert_close(always, plain, rtol=0, atol=1e-10)


@every_model
def test_whoever_is_never_told_hears_its_own_likeliest_words(name: str) -> None:
    model, (source, real, target) = make(name), batch()
    never = coins(target, 0.0)
    assert never is not None
    hidden, _ = model(source, real, target, never)
    with torch.no_grad():
        state, tokens, said = model.start(source, real), target[:, :1], []
        for _ in range(7):
            logits, state = model.step(tokens, state)
            tokens = logits.argmax(-1, keepdim=True)
            said.append(logits)
    assert not torch.equal(torch.stack(said, 1).argmax(-1)[:, :-1], target[:, 1:])
    torch.testing.assert_close(model.head.logits(hidden).detach(), torch.stack(said, 1), rtol=0, atol=1e-10)


@every_model
def test_hearing_some_of_each_is_being_taught_what_was_heard(name: str) -> None:
    """In value and in every gradient: to hear oneself is no more than to be given other words."""
    model, (source, real, target) = make(name), batch()
    told = coins(target, 0.5)
    assert told is not None
    hidden, state = model(source, real, target, told)
    said = model.head.logits(hidden).argmax(-1)
    heard = target.clone()
    heard[:, 1:] = torch.where(told[:, 1:], target[:, 1:], said[:, :-1])
    assert not torch.equal(heard, target)
    wanted, after = model(source, real, heard)
    torch.testing.assert_close(hidden, wanted, rtol=0, atol=1e-10)
    assert (state.length, set(state.notes)) == (after.length, set(after.notes))
    for note, value in after.notes.items():
        torch.testing.assert_close(state.notes[note], value, rtol=0, atol=1e-10)
    towards = torch.randn_like(hidden)
    one, other = (
        torch.autograd.grad(y, list(model.parameters()), towards, allow_unused=True, materialize_grads=True)
        for y in (hidden, wanted)
    )
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.9])
def test_a_coin_shows_the_truth_as_often_as_it_should(chance: float) -> None:
    told = coins(torch.zeros(200, 50, dtype=torch.long), chance)
    assert told is not None
    assert abs(told.double().mean().item() - chance) < 0.02
    assert chance in (0.0, 1.0) or not torch.equal(told[0], told[1])  # each word is decided by itself


def test_without_an_end_the_probability_stays() -> None:
    task = RewriteTask(forcing=0.7)
    assert {chance_of_truth(n, task) for n in (0, 10, 10**9)} == {0.7}
    assert chance_of_truth(10**9, RewriteTask()) == 1.0


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("first", "last"), [(1.0, 0.0), (0.9, 0.25), (0.2, 0.8)])
def test_a_schedule_goes_from_the_first_probability_to_the_last_and_never_back(
    decay: str, first: float, last: float
) -> None:
    task = RewriteTask(forcing=first, forcing_end=last, forcing_steps=50, forcing_decay=decay)  # type: ignore[arg-type]
    way = [chance_of_truth(n, task) for n in range(60)]
    assert way[0] == pytest.approx(first, abs=0.0025)  # a sigmoid is never quite at its end
    assert set(way[50:]) == {last}
    assert way == sorted(way, reverse=first > last)
    assert way[49] == pytest.approx(last, abs=0.03)  # no jump at the end
    assert len(set(way[:51])) == 51


def test_the_shapes_of_the_schedules() -> None:
    """Half way: half, a tenth, half. Exponential is lowest throughout; a sigmoid waits and then hurries."""
    half = {name: decay(0.5) for name, decay in DECAYS.items()}
    assert half == pytest.approx({"linear": 0.5, "exponential": 0.1, "sigmoid": 0.5})
    for over in (0.1, 0.25, 0.4):
        assert DECAYS["exponential"](over) < DECAYS["linear"](over) < DECAYS["sigmoid"](over)
        assert DECAYS["sigmoid"](1 - over) == pytest.approx(1 - DECAYS["sigmoid"](over))
