"""What a run says: each step once, no NaN hidden, readable with and without a terminal."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from rich.console import Console
from torch import nn

from regard.errors import ConfigError
from regard.training import train
from regard.training.checkpoint import found
from regard.training.log import Journal, Log, read_metrics, write_environment

NUMBERS = {"loss": 2.5, "tokens_per_second": 12_345.6, "rate": 1e-3, "seconds_per_step": 0.5}


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_nan_is_written_and_the_file_stays_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.write({"step": 1, "valid": {"loss": float("nan"), "bleu": float("-inf")}})
    journal.close()
    assert strict((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "valid": {"loss": "nan", "bleu": "-inf"}}


def test_what_lies_ahead_is_forgotten_and_so_is_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 4, "loss": 1},
        {"step": 4, "valid": {}},
        {"step": 6, "loss": 2},
        {"step": 6, "valid": {}},
        {"step": 6, "final": ""},
    ]
    path.write_text("\n".join([*map(json.dumps, lines), '{"step": 7, "lo']))
    journal = Journal(path)
    journal.forget(6, 4)
    assert read_metrics(path) == lines[:3]
    journal.forget(5, 4)
    assert read_metrics(path) == lines[:2]
    journal.close()


def test_every_interval_and_every_evaluation_is_a_line(tmp_path: Path) -> None:
    class Bleu(float):
        definition = "nrefs:1|case:mixed"

    class Defined(toy.Toy):
        def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
            return {"loss": 1.0, "bleu": Bleu(33.0)}

    toy.go(tmp_path, Defined())
    lines = [strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == [3, 6, 9, 12, 15, 18, 20]
    assert {"loss", "nll", "rate", "norm", "epoch", "tokens", "flops", "seconds", "tokens_per_second"} <= training[
        0
    ].keys()
    valid = [line for line in lines if "valid" in line]
    assert [line["step"] for line in valid] == [4, 8, 12, 16, 20]
    assert valid[0]["definitions"] == {"bleu": "nrefs:1|case:mixed"}
    assert lines[-1] == {"step": 20, "final": "best", "of": [4]}


def test_the_logged_loss_is_the_mean_over_the_words_of_the_interval(tmp_path: Path) -> None:
    toy.go(tmp_path / "one", log_every=1)
    toy.go(tmp_path / "four", log_every=4)
    tokens = [toy.Toy().batch("train", step).tokens for step in range(20)]
    single = [line["nll"] for line in read_metrics(tmp_path / "one" / "metrics.jsonl") if "nll" in line]
    for i, line in enumerate(line for line in read_metrics(tmp_path / "four" / "metrics.jsonl") if "nll" in line):
        part = range(4 * i, 4 * i + 4)
        assert line["nll"] == pytest.approx(sum(single[s] * tokens[s] for s in part) / sum(tokens[s] for s in part))


def test_without_a_terminal_there_is_a_line_an_interval(tmp_path: Path) -> None:
    said: list[str] = []
    with Log(tmp_path, toy.config(steps=100), said.append, console=Console(file=io.StringIO())) as log:
        log.step(49)
        log.train(50, NUMBERS)
        log.evaluation(50, {"loss": 2.25, "bleu": 31.0}, best=True)
    assert said == [
        "step 50/100  loss 2.5000  12,346 tokens/s  rate 1.00e-03  left 0:25",
        "step 50/100  valid: loss 2.25  bleu 31  (best)",
    ]


def test_on_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=150, color_system=None)
    with Log(tmp_path, toy.config(steps=100), console=console) as log:
        log.step(50)
        log.train(50, NUMBERS)
        log.evaluation(50, {"bleu": 31.0}, best=False)
    last = screen.getvalue()
    for text in ("50/100", "loss 2.5000", "12,346 tokens/s", "rate 1.00e-03", "valid: bleu 31"):
        assert text in last, text


def test_tensorboard_gets_the_same_numbers_each_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    toy.go(tmp_path, tensorboard=True)
    shutil.rmtree(found(tmp_path / "checkpoints")[-1])
    toy.go(tmp_path, tensorboard=True)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    expected = [(line["step"], line["loss"]) for line in read_metrics(tmp_path / "metrics.jsonl") if "loss" in line]
    assert [(e.step, pytest.approx(e.value, rel=1e-6)) for e in events.Scalars("train/loss")] == expected
    assert [e.step for e in events.Scalars("valid/accuracy")] == [4, 8, 12, 16, 20]


def test_without_tensorboard_the_package_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"TensorBoard is not installed; write pip install 'regard\[tensorboard\]'"):
        toy.go(tmp_path, tensorboard=True)


def test_the_environment_is_written_and_a_change_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    device = torch.device("cpu")
    write_environment(tmp_path, toy.config(seed=7), device, said.append)
    write_environment(tmp_path, toy.config(seed=7), device, said.append)
    assert not said
    held = json.loads((tmp_path / "env.json").read_bytes())
    assert held["torch"] == torch.__version__
    assert (held["seed"], held["threads"]) == (7, torch.get_num_threads())
    (tmp_path / "env.json").write_text(json.dumps(held | {"torch": "2.0", "platform": "elsewhere"}))
    write_environment(tmp_path, toy.config(), device, said.append)
    assert said == [
        f"torch {torch.__version__} instead of 2.0: the run goes on, equivalent but perhaps not bit for bit"
    ]


def test_a_run_that_goes_on_says_from_where(tmp_path: Path) -> None:
    said: list[str] = []
    toy.go(tmp_path, steps=5)
    train(toy.fresh(tmp_path, toy.config()), toy.Toy(), toy.config(), said.append)
    assert f"{tmp_path}: going on from step 5" in said
    assert said[-1] == "model.safetensors: the best weights, of step 20"
