"""Hard attention learns by REINFORCE: against every choice enumerated, and through a checkpoint."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from regard.config import TrainConfig, make_recipe
from regard.config.task import RewriteTask
from regard.core.head import Loss, Mixture
from regard.models import build, schema, seq2seq
from regard.models.seq2seq import Config, Seq2Seq
from regard.prepare import prepare
from regard.tasks.reinforce import KEPT, with_choices
from regard.tasks.rewrite import Rewrite
from regard.training import Run, Stopped, settle, start, train
from regard.training.checkpoint import found

VOCAB, S, T = 5, 3, 2
SOURCE, TOLD, WANTED = torch.tensor([[4, 3, 2]]), torch.tensor([[1, 3]]), torch.tensor([[3, 2]])
DECODERS: dict[str, dict[str, Any]] = {
    "bahdanau": {"decoder": "bahdanau", "score": "additive"},
    "luong": {"decoder": "luong", "score": "general", "feeding": True},
    "two heads": {"decoder": "luong", "score": "additive", "heads": 2, "feeding": False},
}
PLAIN = RewriteTask(reinforce=1.0, entropy=0.0)
ROWS, BATCHES = 1000, 50  # draws at a time, and how often


def make(choice: str = "hard", **settings: Any) -> Seq2Seq:
    """In training, so that choices are drawn; in float64, and with weights that prefer some choices."""
    model = Seq2Seq(Config(vocab=VOCAB, dim=4, embedding=3, dropout=0.0, choice=choice, **settings)).double()  # type: ignore[arg-type]
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.8)
    return model


def forward(model: Seq2Seq, rows: int) -> tuple[Tensor, dict[str, Tensor]]:
    hidden, state = model(SOURCE.expand(rows, -1), None, TOLD.expand(rows, -1))
    return hidden, state.notes


# ------------------------------------------------------------------ the Monte-Carlo mean is the enumerated one


def every_choice(model: Seq2Seq) -> tuple[Tensor, Tensor]:
    """log p(s) and log p(y | s) for every way to choose, which is prescribed instead of drawn: (N,), (N,)."""
    heads = model.config.heads
    ways = torch.tensor(list(itertools.product(range(S), repeat=heads * T))).view(-1, heads, T)
    looks = iter(ways.split(1, 2) if model.config.feeding else [ways])

    def choose(weights: Tensor, *, draw: bool) -> tuple[Tensor, Tensor, Tensor]:
        at = next(looks)[..., None]
        chosen = torch.zeros_like(weights).scatter(-1, at, 1.0)
        return chosen, weights.log().gather(-1, at)[..., 0].sum(1), torch.zeros(len(ways), at.shape[2])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seq2seq, "choose", choose)
        hidden, notes = forward(model, len(ways))
    assert next(looks, None) is None
    logs = model.head.logits(hidden).log_softmax(-1).gather(2, WANTED.expand(len(ways), -1)[..., None])
    return notes["choice"].sum(1), logs.sum((1, 2))


def drawn(model: Seq2Seq, *usual: float) -> Tensor:
    """The gradient of a draw's log-likelihood as it is learnt from, for each of what may be usual, by batches:
    (usual, BATCHES, parameters)."""
    real, words = torch.ones(ROWS, T, dtype=torch.bool), WANTED.expand(ROWS, -1)
    samples = []
    for _ in range(BATCHES):
        hidden, notes = forward(model, ROWS)
        loss = model.head(hidden, words, real=real)
        for one in usual:
            total, _ = with_choices(loss, model.head, hidden, words, real, notes, PLAIN, torch.tensor(one))
            samples.append(gradient(-total / ROWS, model))
    return torch.stack(samples).unflatten(0, (BATCHES, len(usual))).transpose(0, 1)


def gradient(of: Tensor, model: Seq2Seq) -> Tensor:
    wrt = list(model.parameters())
    found = torch.autograd.grad(of, wrt, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([piece.flatten() for piece in found])


def error(samples: Tensor) -> Tensor:
    """Of their mean."""
    return samples.std(0) / len(samples) ** 0.5


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_mean_gradient_is_that_of_the_expected_log_likelihood(decoder: str) -> None:
    """Σ_s p(s) log p(y | s), every s enumerated: draws come within three standard errors. What is usual changes
    their variance, and not their mean."""
    model = make(**DECODERS[decoder])
    chance, logs = every_choice(model)
    torch.testing.assert_close(chance.exp().sum(), torch.ones((), dtype=torch.float64))
    exact = gradient((chance.exp() * logs).sum(), model)
    own = torch.cat([torch.full((p.numel(),), ".score." in name) for name, p in model.named_parameters()])
    expected = float((chance.exp() * logs).sum().detach() / T)  # of a word
    nothing, usual, far_off = drawn(model, 0.0, expected, 5 * expected)
    for samples in (nothing, usual, far_off):
        for along in (exact, exact * own):  # as a whole, and where it is learnt to choose
            assert ((samples - exact) @ along).mean().abs() < 3 * error(samples @ along)
        assert ((samples.mean(0) - exact).abs() <= 5 * error(samples) + 1e-12).all()  # each parameter alone
    assert (exact * own).square().sum() > 10 * error(usual @ (exact * own))  # not to learn to choose would be noticed
    assert spread(usual[:, own]) < 0.2 * spread(nothing[:, own]) < 0.1 * spread(far_off[:, own])


def spread(samples: Tensor) -> Tensor:
    return samples.var(0).sum()


# ------------------------------------------------------------------ the terms, one by one


def terms(
    task: RewriteTask, usual: Tensor | None, real: Tensor
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor], Loss]:
    """with_choices on made-up notes; also the log-probabilities of the words."""
    model = make()
    hidden = torch.randn(2, 4, 3, dtype=torch.float64)
    words = torch.randint(0, VOCAB, (2, 4))
    notes = {name: torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for name in ("choice", "entropy")}
    loss = model.head(hidden, words, real=real)
    total, after = with_choices(loss, model.head, hidden, words, real, notes, task, usual)
    logs = model.head.logits(hidden).log_softmax(-1).gather(2, words[..., None])[..., 0].detach()
    return total, after, logs, notes, loss


REAL = torch.tensor([[True] * 4, [True, True, False, False]])


def test_a_choice_is_praised_for_the_words_from_it_on() -> None:
    """By as much as they were better than usual; padding neither praises nor is praised."""
    total, _, logs, notes, _ = terms(RewriteTask(reinforce=0.5, entropy=0.0), torch.tensor(-2.0), REAL)
    praise, openness = torch.autograd.grad(-total, list(notes.values()))
    for row, length in enumerate((4, 2)):
        for t in range(4):
            wanted = 0.5 * sum(float(logs[row, later]) + 2.0 for later in range(t, length))
            assert praise[row, t].item() == pytest.approx(wanted, rel=1e-9)
    assert not openness.any()


def test_open_choices_are_rewarded() -> None:
    total, _, _, notes, _ = terms(RewriteTask(reinforce=0.0, entropy=0.3), None, REAL)
    praise, openness = torch.autograd.grad(-total, list(notes.values()))
    torch.testing.assert_close(openness, 0.3 * REAL.double())
    assert not praise.any()


def test_without_weight_the_choices_leave_the_loss_as_it_is() -> None:
    total, _, _, _, loss = terms(RewriteTask(reinforce=0.0, entropy=0.0), None, REAL)
    assert torch.equal(total, loss.total)


def test_what_is_usual_is_a_moving_average_of_a_words_log_probability() -> None:
    _, first, logs, _, _ = terms(PLAIN, None, REAL)
    torch.testing.assert_close(first, logs[REAL].mean())
    torch.manual_seed(1)
    _, then, logs, _, _ = terms(PLAIN, torch.tensor(-2.0, dtype=torch.float64), REAL)
    torch.testing.assert_close(then, -2.0 * KEPT + (1 - KEPT) * logs[REAL].mean())
    assert not then.requires_grad


# ------------------------------------------------------------------ the exact alternative


def test_the_marginal_is_the_sum_over_all_choices() -> None:
    """-log Σ_s p(s) p(y | s) of a whole sentence, where no word hears of the choices before it."""
    settings = {"decoder": "luong", "score": "general", "feeding": False}
    hard, marginal = make("hard", **settings), make("marginal", **settings)
    marginal.load_state_dict(hard.state_dict())
    assert isinstance(marginal.head, Mixture)
    chance, logs = every_choice(hard)
    wanted = -(chance + logs).logsumexp(0)
    hidden, notes = forward(marginal, 1)
    assert not notes
    loss = marginal.head(hidden, WANTED, real=torch.ones_like(WANTED, dtype=torch.bool))
    torch.testing.assert_close(loss.total, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(loss.total, marginal), gradient(wanted, hard), rtol=0, atol=1e-12)
    bound = -(chance.exp() * logs).sum()
    assert loss.total < bound  # what REINFORCE follows is never better (Jensen)


# ------------------------------------------------------------------ through a checkpoint

HARD = tiny.recipe(
    system="seq2seq",
    data={"count": 300, "held": 8},
    task={"forcing_end": 0.5, "forcing_steps": 8, "entropy": 0.02},
    train={"steps": 9, "tokens": 256, "save_every": 4, "final": "last"},
)
HARD["model"] = {"dim": 12, "embedding": 8, "dropout": 0.1, "choice": "hard", "tied": "target"}


def ready(folder: Path) -> tuple[Run, Rewrite, TrainConfig]:
    folder.mkdir(exist_ok=True)
    recipe, task = prepare(make_recipe(HARD, schema), folder)
    device = settle(recipe.train)
    run = start(folder, build(recipe.system, recipe.model), recipe.train, device=device)  # type: ignore[arg-type]
    return run, task, recipe.train


def test_a_batch_tells_the_next_what_is_usual(tmp_path: Path) -> None:
    run, task, _ = ready(tmp_path)

    def usual(before: dict[str, Any] | None) -> Tensor:
        torch.manual_seed(0)
        after: dict[str, Any] = task.loss(run.model, task.batch("train", 0), before).carry
        assert after["batches"] == 1
        found: Tensor = after["usual"]
        return found

    torch.testing.assert_close(usual({"batches": 0, "usual": torch.tensor(-2.0)}), -2 * KEPT + (1 - KEPT) * usual(None))


def go(folder: Path, stop: int | None = None) -> dict[str, Any]:
    """Trains to the end, or goes on to it; at step `stop` it is told to leave. Gives what it carries in the end."""
    run, task, config = ready(folder)
    fetch = task.batch

    def batch(split: str, step: int, rank: int = 0, world: int = 1) -> Any:
        if step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return fetch(split, step, rank, world)

    task.batch = batch  # type: ignore[method-assign]
    train(run, task, config, lambda text: None)
    carry: dict[str, Any] = run.carry
    return carry


def end_of(folder: Path) -> dict[str, Any]:
    last = found(folder / "checkpoints")[-1]
    files: dict[str, Any] = {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
    return files | {"carry": json.loads((last / "state.json").read_bytes())["carry"]}


def test_what_is_usual_is_kept_in_the_checkpoint(tmp_path: Path) -> None:
    """A run of hard attention and scheduled sampling, stopped and resumed, is the run that was not: bit for bit."""
    whole = go(tmp_path / "whole")
    assert set(whole) == {"batches", "usual"}
    assert whole["batches"] == 9
    assert -10 < whole["usual"].item() < 0
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 6 of 9"):
        go(tmp_path / "stopped", stop=6)
    torch.rand(7)
    resumed = go(tmp_path / "stopped")
    assert torch.equal(resumed["usual"], whole["usual"])
    one, other = end_of(tmp_path / "whole"), end_of(tmp_path / "stopped")
    assert {"model.safetensors", "carry.safetensors", "rng.safetensors"} <= set(one)
    assert one == other
