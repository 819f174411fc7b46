"""Learning rates against their closed forms, optimizers against theirs, and who gets weight decay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import toy

from regard.config import TrainConfig
from regard.errors import ConfigError
from regard.training.optim import OPTIMIZERS, SCHEDULES, check, optimizer, rate


def at(step: int, dim: int | None = None, **settings: Any) -> float:
    return rate(step, TrainConfig(**settings), dim)


@pytest.mark.parametrize(
    ("dim", "step", "value"),
    [(512, 4000, 6.988e-4), (1024, 4000, 4.941e-4), (512, 1, 1.747e-7), (512, 100_000, 1.398e-4)],
)
def test_noam_gives_the_papers_rates(dim: int, step: int, value: float) -> None:
    assert at(step, dim, schedule="noam", rate=1.0, warmup=4000) == pytest.approx(value, rel=5e-4)


def test_noam_needs_a_width() -> None:
    with pytest.raises(ConfigError, match=r'noam needs a model with a width \(dim\); write schedule = "inverse_sqrt"'):
        at(1, schedule="noam")


def test_inverse_sqrt_rises_to_the_peak_and_falls_by_the_root() -> None:
    for step in (1, 50, 100):
        assert at(step, schedule="inverse_sqrt", rate=0.5, warmup=100) == pytest.approx(0.5 * step / 100)
    for step in (100, 400, 2500):
        assert at(step, schedule="inverse_sqrt", rate=0.5, warmup=100) == pytest.approx(0.5 * math.sqrt(100 / step))


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_and_linear_go_from_the_peak_to_the_floor(floor: float) -> None:
    line: dict[str, Any] = {"schedule": "linear", "rate": 2.0, "warmup": 10, "steps": 110, "floor": floor}
    wave = line | {"schedule": "cosine"}
    for settings in (line, wave):
        assert at(5, **settings) == pytest.approx(1.0)
        assert at(10, **settings) == pytest.approx(2.0)
        assert at(60, **settings) == pytest.approx(2 * (1 + floor) / 2)
        assert at(110, **settings) == at(500, **settings) == pytest.approx(2 * floor)
    assert at(35, **line) == pytest.approx(2 * (floor + (1 - floor) * 0.75))
    assert at(35, **wave) == pytest.approx(2 * (floor + (1 - floor) * (1 + math.cos(math.pi / 4)) / 2))


def test_constant_is_constant_after_the_warm_up() -> None:
    assert [at(s, schedule="constant", rate=1.0, warmup=4) for s in (1, 2, 4, 5, 999)] == [0.25, 0.5, 1, 1, 1]


def test_drops_divide_after_given_steps() -> None:
    how: dict[str, Any] = {"schedule": "drops", "rate": 8.0, "warmup": 4, "drops": (10, 20), "factor": 2}
    assert [at(s, **how) for s in (1, 4, 10, 11, 20, 21, 999)] == [2, 8, 8, 4, 4, 2, 2]


def test_a_plateau_is_constant_between_cuts() -> None:
    config = TrainConfig(schedule="plateau", rate=8.0, warmup=4, factor=4)
    assert [rate(s, config, cuts=c) for s, c in ((1, 0), (4, 0), (99, 0), (99, 1), (999, 2))] == [2, 8, 8, 2, 0.5]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_warm_up_the_first_step_has_the_full_rate(schedule: str) -> None:
    assert at(1, 1, schedule=schedule, rate=3.0, warmup=0, steps=10_000) == pytest.approx(3.0, rel=2e-4)


def test_decay_pulls_on_matrices_only() -> None:
    model = toy.Bigram()
    adamw = optimizer(model, TrainConfig(rate=0.1, decay=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    adamw.step()
    for name, parameter in model.named_parameters():
        expected = before[name] * (0.95 if parameter.ndim >= 2 else 1)
        torch.testing.assert_close(parameter.detach(), expected)


def test_parameters_that_do_not_learn_are_left_out() -> None:
    model = toy.Bigram()
    model.hidden.requires_grad_(False)
    held = {id(p) for group in optimizer(model, TrainConfig()).param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}
    assert optimizer(model, TrainConfig()).defaults["fused"] is True


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_makes_the_step_that_it_is_named_for(name: str) -> None:
    """The first of gradients g, whatever came before: its closed form."""
    model = torch.nn.Linear(3, 2, bias=False)
    made = optimizer(model, TrainConfig(optimizer=name, rate=0.5))
    before, g = model.weight.detach().clone(), torch.tensor([[1.0, -2.0, 3.0], [0.5, -0.25, 4.0]])
    model.weight.grad = g.clone()
    made.step()
    steps = {"adamw": g.sign(), "sgd": g, "rmsprop": g / (0.01 * g**2).sqrt(), "adagrad": g.sign()}
    torch.testing.assert_close(model.weight.detach(), before - 0.5 * steps[name])
    assert name in repr(type(made)).lower()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"schedule": "plateau", "evaluate_every": 0},
            'train.schedule = "plateau" looks at evaluations, but train.evaluate_every = 0 makes none on the way; '
            "write for example evaluate_every = 1000",
        ),
        (
            {"schedule": "drops"},
            'train.schedule = "drops" needs steps to drop at; write for example drops = [1000, 2000]',
        ),
        (
            {"schedule": "cosine", "drops": (3,)},
            'train.drops: the schedule "cosine" has none; write schedule = "drops"',
        ),
        (
            {"optimizer": "sgd", "betas": (0.9, 0.9)},
            'train.betas: the optimizer "sgd" has none; leave it out',
        ),
        ({"optimizer": "sgd", "epsilon": 0.1}, 'train.epsilon: the optimizer "sgd" has none; leave it out'),
    ],
)
def test_what_nobody_would_read_or_nothing_can_be_made_of_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(TrainConfig(**settings))
    assert str(error.value) == sentence


def test_usual_settings_are_nobodys() -> None:
    for name in OPTIMIZERS:
        check(TrainConfig(optimizer=name, betas=(0.9, 0.98)))
    check(TrainConfig(optimizer="rmsprop", epsilon=0.1))
