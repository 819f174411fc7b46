"""Learning rates against their closed forms, and who gets weight decay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import toy

from regard.config import TrainConfig
from regard.errors import ConfigError
from regard.training.optim import SCHEDULES, adamw, rate


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


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_warm_up_the_first_step_has_the_full_rate(schedule: str) -> None:
    assert at(1, 1, schedule=schedule, rate=3.0, warmup=0, steps=10_000) == pytest.approx(3.0, rel=2e-4)


def test_decay_pulls_on_matrices_only() -> None:
    model = toy.Bigram()
    optimizer = adamw(model, TrainConfig(rate=0.1, decay=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        expected = before[name] * (0.95 if parameter.ndim >= 2 else 1)
        torch.testing.assert_close(parameter.detach(), expected)


def test_parameters_that_do_not_learn_are_left_out() -> None:
    model = toy.Bigram()
    model.hidden.requires_grad_(False)
    held = {id(p) for group in adamw(model, TrainConfig()).param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}
    assert adamw(model, TrainConfig()).defaults["fused"] is True
