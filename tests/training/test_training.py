"""The loop: exact accumulation, evaluation, the best, early stopping, which weights are final, what is counted."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import ConfigError
from regard.tasks import Loss
from regard.training import Run, loop, settle, start, train
from regard.training.checkpoint import average, path_of
from regard.training.flops import flops_per_token
from regard.training.log import read_metrics
from regard.training.loop import better, scale
from regard.training.state import rng_tensors
from regard.weights import load_weights, weights


def double(folder: Path, rows: int, accumulate: int) -> Run:
    """Trained in float64, without what depends on the batch: dropout, noise, batch norm."""
    config = toy.config(accumulate=accumulate, steps=4, clip=0.05, rate=0.1)
    device = settle(config)
    model = toy.Bigram(dropout=0)
    model.norm = nn.Identity()  # type: ignore[assignment]
    run = start(folder, model.double(), config, device=device)
    train(run, toy.Toy(rows=rows, noise=0), config, lambda text: None)
    return run


def test_four_micro_batches_of_eight_are_one_batch_of_thirty_two(tmp_path: Path) -> None:
    """The batches differ in their number of words, so that a mean of means would be wrong."""
    one, four = double(tmp_path / "one", 32, 1), double(tmp_path / "four", 8, 4)
    assert len({toy.Toy(rows=8).batch("train", i).tokens for i in range(3)} | {one.tokens}) > 1
    assert one.tokens == four.tokens
    for name, tensor in weights(one.model).items():
        torch.testing.assert_close(weights(four.model)[name], tensor, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("clip", "length"), [(0.0, 3.0), (1.0, 1.0), (3.0, 3.0), (7.0, 3.0)])
def test_clipping_shortens_and_does_not_turn(tmp_path: Path, clip: float, length: float) -> None:
    run = toy.fresh(tmp_path, toy.config())
    parameters = list(run.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = torch.cat([p.grad.flatten() for p in parameters])  # type: ignore[union-attr]
    for parameter in parameters:
        parameter.grad *= 15 / before.norm()  # a sum over 5 words whose mean has norm 3
    norm = scale(run, 5, clip)
    after = torch.cat([p.grad.flatten() for p in parameters])  # type: ignore[union-attr]
    assert norm.item() == pytest.approx(3.0, rel=1e-5)
    torch.testing.assert_close(after, before / before.norm() * length)


class Scripted(toy.Toy):
    """Evaluations give these values, one after the other."""

    def __init__(self, values: Iterable[float], name: str = "loss") -> None:
        super().__init__()
        self.values, self.name = iter(values), name

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        return {self.name: next(self.values)}


@pytest.mark.parametrize(
    ("metric", "values", "best", "end"),
    [
        ("loss", [3, 2, 2.5, 2.2, 1], 4, 8),
        ("perplexity", [3, 3, 3], 2, 6),
        ("bleu", [1, 3, 2, math.nan, 9], 4, 8),
        ("bleu", [math.nan, 1, 2, 3, 4, 5, 6, 7, 8, 9], 20, 20),
        ("accuracy", [math.nan, math.nan, 1], None, 4),
    ],
)
def test_training_stops_when_it_gets_no_better_and_keeps_the_best(
    tmp_path: Path, metric: str, values: list[float], best: int | None, end: int
) -> None:
    settings = {"metric": metric, "patience": 2, "evaluate_every": 2, "save_every": 100}
    run = toy.go(tmp_path, Scripted(values, metric), **settings)
    assert (run.best_step, run.step) == (best, end)
    expected = load_weights(path_of(run.checkpoints, best or end) / "model.safetensors")
    for name, tensor in load_weights(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, expected[name])
        assert torch.equal(tensor, weights(run.model)[name].cpu())


@pytest.mark.parametrize(
    ("metric", "values", "cuts"),
    [
        ("loss", [9, 8, 7, 8, 8, 8, 9, 9.5, 9.5, 8], [0, 0, 0, 0, 0, 0, 1, 2, 2, 2]),
        ("accuracy", [1, 2, 3, 2, 1.5, 1.5, 1, 4, 3, 2], [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]),
        ("loss", [3, 2, 1, math.nan, 5, 6, 7, 8, 9, 1], [0, 0, 0, 0, 0, 0, 0, 1, 2, 2]),
    ],
)
def test_a_plateau_is_an_evaluation_worse_than_each_of_the_last(
    tmp_path: Path, metric: str, values: list[float], cuts: list[int]
) -> None:
    """Worse than all of the last three, of which there must be three; as good as one of them is good enough."""
    how = {"schedule": "plateau", "recent": 3, "factor": 4.0, "warmup": 0, "rate": 0.5, "metric": metric}
    toy.go(tmp_path, Scripted(values, metric), **how, evaluate_every=2, log_every=1)
    rates = {line["step"]: line["rate"] for line in read_metrics(tmp_path / "metrics.jsonl") if "rate" in line}
    assert [rates[step] for step in range(3, 21, 2)] == [0.5 / 4**number for number in cuts[:-1]]


@pytest.mark.parametrize("name", ["loss", "free_perplexity", "masked_loss", "bits", "squared_error"])
def test_names_say_what_is_better_lower(name: str) -> None:
    assert better(1.0, 2.0, name)
    assert not better(2.0, 1.0, name)
    assert better(2.0, 1.0, "accuracy")


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_what_moves_the_weights_is_the_clipped_gradient(tmp_path: Path, clip: float) -> None:
    """With plain gradient descent a step is as long as the gradient times the rate: clipped after it was made."""
    how = {"optimizer": "sgd", "rate": 0.25, "warmup": 0, "schedule": "constant", "clip": clip, "steps": 1}
    fresh = weights(toy.fresh(tmp_path, toy.config(**how)).model)
    before = {name: tensor.clone() for name, tensor in fresh.items()}
    run = toy.go(tmp_path, **how, log_every=1)
    learnt = dict(run.model.named_parameters())
    moved = torch.cat([(tensor.detach() - before[name]).flatten() for name, tensor in learnt.items()]).norm().item()
    (line,) = (line for line in read_metrics(tmp_path / "metrics.jsonl") if "norm" in line)
    assert line["norm"] > 0.1
    assert moved == pytest.approx(0.25 * (clip or line["norm"]), rel=1e-4)


def test_final_weights_are_the_last_or_the_mean_of_the_last(tmp_path: Path) -> None:
    last = toy.go(tmp_path / "last", Scripted(range(99)), final="last")
    mean = toy.go(tmp_path / "mean", Scripted(range(99)), final="average", average=3, save_every=3)
    expected = average([path_of(mean.checkpoints, step) for step in (15, 18, 20)])
    for name, tensor in load_weights(tmp_path / "mean" / "model.safetensors").items():
        assert torch.equal(tensor, expected[name])
    newest = load_weights(path_of(last.checkpoints, 20) / "model.safetensors")
    for name, tensor in load_weights(tmp_path / "last" / "model.safetensors").items():
        assert torch.equal(tensor, newest[name])


def test_the_first_weights_are_not_averaged(tmp_path: Path) -> None:
    toy.go(tmp_path, steps=10, keep=9, final="average", average=9)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1] == {"step": 10, "final": "average", "of": [5, 10]}


def test_a_metric_that_the_task_does_not_measure_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the task measures no 'acuracy'; did you mean 'accuracy'"):
        toy.go(tmp_path, metric="acuracy")


def test_the_last_step_is_evaluated_and_saved(tmp_path: Path) -> None:
    run = toy.go(tmp_path, steps=7, evaluate_every=0, save_every=100)
    assert run.evaluated == 7
    assert run.metrics.keys() == {"loss", "accuracy"}
    assert path_of(run.checkpoints, 7).is_dir()


def test_evaluation_is_in_eval_mode_without_gradients_and_leaves_each_module_as_it_was(tmp_path: Path) -> None:
    seen = set()

    class Peeking(toy.Toy):
        def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
            seen.add((model.training, torch.is_grad_enabled()))
            return super().evaluate(model, split)

    run = toy.fresh(tmp_path, toy.config())
    norm = run.model.get_submodule("norm").eval()
    train(run, Peeking(), toy.config(), lambda text: None)
    assert seen == {(False, False)}
    assert run.model.training
    assert not norm.training


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("fp32", torch.float32),
        ("auto", torch.float32 if toy.DEVICE == "cpu" else torch.bfloat16),
    ],
)
def test_precision_is_that_of_training_and_evaluation_is_full(
    tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    seen = set()
    run = toy.fresh(tmp_path, toy.config(precision=precision, steps=3))
    run.model.register_forward_hook(lambda model, _, out: seen.add((model.training, out.dtype)))
    train(run, toy.Toy(), toy.config(precision=precision, steps=3), lambda text: None)
    assert seen == {(True, dtype), (False, torch.float32)}


def test_a_model_is_compiled_once_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(loop, "compile_in_place", compiled.append)
    for wanted in (False, True):
        config = toy.config(steps=2, compile=wanted)
        run = toy.fresh(tmp_path / str(wanted), config)
        train(run, toy.Toy(), config, lambda text: None)
    assert compiled == [run.model]


# ---- arithmetic


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8, bias=False)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        heads = self.project(x).unflatten(-1, (2, 4)).transpose(1, 2)
        return scaled_dot_product_attention(heads, heads, heads, dropout_p=0.0)


class Seven:
    tokens = 7


class Sum(toy.Toy):
    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss:
        return Loss(model(torch.randn(3, 5, 8)).sum(), 1)


def test_arithmetic_is_counted_also_in_fused_attention_and_leaves_no_trace() -> None:
    model, before = Attends(), rng_tensors()
    linear = 2 * 3 * 5 * 8 * 8  # and as much again for the gradient of the matrix; x wants none
    attention = 2 * (3 * 2 * 5 * 5 * 4)
    expected = 2 * linear + (2 + 5) * attention
    assert flops_per_token(model, Sum(), Seven(), None) * 7 == expected
    assert model.calls == 0
    assert model.project.weight.grad is None
    assert all(torch.equal(a, b) for a, b in zip(before.values(), rng_tensors().values(), strict=True))


class Adds(nn.Module):
    """As a head on a GPU adds up the gradient of its matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = toy.DEVICE.replace("cpu", "meta")  # a CPU has no such sums
        some, to = torch.zeros(3, 5, dtype=torch.bfloat16, device=device), torch.zeros(3, 3, device=device)
        torch.addmm(to, some, some.T, out_dtype=to.dtype, out=to)
        return self.weight


def test_arithmetic_is_counted_of_sums_in_another_precision() -> None:
    assert flops_per_token(Adds(), Sum(), Seven(), None) * 7 == 2 * 3 * 5 * 3


def test_arithmetic_adds_up_with_the_tokens(tmp_path: Path) -> None:
    run = toy.go(tmp_path)
    batches = [toy.Toy().batch("train", i).tokens for i in range(20)]
    assert run.tokens == sum(batches)
    assert run.flops_per_token > 0


# ---- before the first step


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    def first(seed: int) -> torch.Tensor:
        return weights(toy.fresh(tmp_path, toy.config(seed=seed)).model)["words.weight"]

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no device 'cuda:99' here; write auto or one of cpu"):
        settle(toy.config(device="cuda:99"))


@pytest.fixture
def _any_algorithm() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_any_algorithm")
def test_deterministic_asks_pytorch_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    toy.go(tmp_path, deterministic=True, steps=3)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_schedule_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = toy.config(schedule="noam")
    with pytest.raises(ConfigError, match="noam needs a model with a width"):
        start(tmp_path / "run", toy.Bigram(), config, device=settle(config))
    assert not (tmp_path / "run").exists()
