"""A run that was stopped goes on as if it had not been: bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toy

from regard.errors import CheckpointError
from regard.training import Stopped, train
from regard.training.checkpoint import found
from regard.training.log import read_metrics
from regard.training.stop import Interrupted, Stop

ROOT = Path(__file__).parents[2]
PLATEAU = {"schedule": "plateau", "recent": 1, "evaluate_every": 2, "optimizer": "rmsprop", "rate": 0.1}
TIMES = {"seconds", "tokens_per_second", "seconds_per_step"}


def end_of(folder: Path) -> dict[str, Any]:
    """All that a run comes to: the last checkpoint (weights, optimizer, generators, carry), the model, the log."""
    last = found(folder / "checkpoints")[-1]
    files = {path.name: path.read_bytes() for path in (*last.glob("*.safetensors"), folder / "model.safetensors")}
    state = json.loads((last / "state.json").read_bytes())
    log = [{k: v for k, v in line.items() if k not in TIMES} for line in read_metrics(folder / "metrics.jsonl")]
    return files | {"state": {k: v for k, v in state.items() if k not in TIMES}, "log": log}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """The end of a run with these settings that nothing happened to."""
    ends: dict[str, dict[str, Any]] = {}

    def reference(**changes: Any) -> dict[str, Any]:
        key = repr(changes)
        if key not in ends:
            folder = tmp_path_factory.mktemp("undisturbed")
            toy.go(folder, **changes)
            ends[key] = end_of(folder)
        return ends[key]

    return reference


def told(step: int, *numbers: signal.Signals) -> toy.Toy:
    """A task in the middle of whose step the process gets these signals."""
    task = toy.Toy()

    def tell(index: int) -> None:
        if index == step:  # the batch of the next step is fetched during this one
            for number in numbers:
                os.kill(os.getpid(), number)

    task.before_batch = tell
    return task


@pytest.mark.parametrize("changes", [{}, {"accumulate": 3}, {"schedule": "noam", "final": "average"}, PLATEAU], ids=str)
@pytest.mark.parametrize("stop", [1, 8, 11, 19])
def test_twenty_steps_are_some_and_the_rest(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]], stop: int, changes: dict[str, Any]
) -> None:
    with pytest.raises(Stopped, match=f"stopped by SIGTERM at step {stop} of 20, which is saved; go on with") as caught:
        toy.go(tmp_path, told(stop * changes.get("accumulate", 1), signal.SIGTERM), **changes)
    assert caught.value.code == 143
    torch.rand(7)
    toy.go(tmp_path, **changes)
    assert end_of(tmp_path) == undisturbed(**changes)


def test_a_run_stopped_at_every_step_is_the_same_run(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    for step in range(1, 20):
        with pytest.raises(Stopped, match=f"at step {step} of 20"):
            toy.go(tmp_path, told(step, signal.SIGUSR1))
    toy.go(tmp_path)
    assert end_of(tmp_path) == undisturbed()


def test_a_signal_drops_an_evaluation_which_is_then_made_up_for(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    class Told(toy.Toy):
        def evaluate(self, model: torch.nn.Module, split: str) -> dict[str, float]:
            torch.rand(3)
            os.kill(os.getpid(), signal.SIGTERM)
            return super().evaluate(model, split)

    for _ in range(2):
        with pytest.raises(Stopped, match="stopped by SIGTERM at step 4 of 20"):
            toy.go(tmp_path, Told())
        assert not any("valid" in line for line in read_metrics(tmp_path / "metrics.jsonl"))
    toy.go(tmp_path)
    assert end_of(tmp_path) == undisturbed()


def test_what_may_be_dropped_is_not_begun_once_told_to_stop() -> None:
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted), stop.dropping():
            pytest.fail("it was begun")


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    toy.go(tmp_path / "never", evaluate_every=0, final="last")
    toy.go(tmp_path / "always", evaluate_every=1, final="last")
    for name in ("model", "optimizer", "rng", "carry"):
        one, other = (found(tmp_path / run / "checkpoints")[-1] / f"{name}.safetensors" for run in ("never", "always"))
        assert one.read_bytes() == other.read_bytes(), name


def test_ctrl_c_saves_and_a_second_does_not_wait(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match="stopped by SIGINT at step 7 of 20") as caught:
        toy.go(tmp_path, told(7, signal.SIGINT))
    assert caught.value.code == 130
    with pytest.raises(KeyboardInterrupt):
        toy.go(tmp_path, told(9, signal.SIGINT, signal.SIGINT), evaluate_every=0)
    assert found(tmp_path / "checkpoints")[-1].name == "step-00000007"
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_time_limit_saves_and_stops(tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(Stopped, match="stopped by the time limit at step 0 of 20") as caught:
        toy.go(tmp_path, stop_after=1e-9)
    assert caught.value.code == 143
    toy.go(tmp_path, stop_after=60)
    assert end_of(tmp_path) == undisturbed()


def test_a_process_told_to_stop_exits_143_and_can_be_resumed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.training.toy", str(tmp_path)]
    with subprocess.Popen([*command, "--steps", "1000000"], cwd=ROOT, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert "step 3/" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped by SIGTERM at step" in error
    assert "Traceback" not in error
    stopped = int(error.split("at step ")[1].split(" ")[0])
    assert found(tmp_path / "checkpoints")[-1].name == f"step-{stopped:08d}"
    assert toy.go(tmp_path, steps=stopped + 2).step == stopped + 2


def test_a_finished_run_says_so_and_does_nothing(tmp_path: Path) -> None:
    toy.go(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    said: list[str] = []
    run = toy.fresh(tmp_path, toy.config())
    train(run, toy.Toy(), toy.config(), said.append)
    assert said == [f"{tmp_path}: finished at step 20; nothing to do"]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_a_kill_after_the_last_checkpoint_costs_only_the_model_file(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    toy.go(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    toy.go(tmp_path)
    assert end_of(tmp_path) == undisturbed()


@pytest.mark.parametrize("final", ["best", "last", "average"])
def test_final_weights_that_were_damaged_are_made_again(tmp_path: Path, final: str) -> None:
    settings = toy.config(final=final)
    toy.go(tmp_path, final=final)
    before, path = end_of(tmp_path), tmp_path / "model.safetensors"
    for damaged in (path.read_bytes()[:-9], b"", path.read_bytes()[:5]):
        path.write_bytes(damaged)
        said: list[str] = []
        train(toy.fresh(tmp_path, settings), toy.Toy(), settings, said.append)
        assert any("model.safetensors" in line and "; it was set aside as .corrupt-model" in line for line in said)
        assert end_of(tmp_path) == before
    assert len(list(tmp_path.glob(".corrupt-model.safetensors*"))) == 3
    said = []
    train(toy.fresh(tmp_path, settings), toy.Toy(), settings, said.append)
    assert said == [f"{tmp_path}: finished at step 20; nothing to do"]


def test_final_weights_that_were_damaged_are_not_learnt_anew_in_silence(tmp_path: Path) -> None:
    toy.go(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    text = "no checkpoint is left to make it again from: put a good copy back, or train into a new folder"
    with pytest.raises(CheckpointError, match=rf"model.safetensors: not a safetensors file, or cut short; .*; {text}"):
        toy.go(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"cut"


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    said: list[str] = []
    toy.go(tmp_path, steps=10)
    longer = toy.config(steps=15)
    train(toy.fresh(tmp_path, longer), toy.Toy(), longer, said.append)
    assert "the settings have changed since step 10: the run goes on, equivalent but not bit for bit" in said
    assert found(tmp_path / "checkpoints")[-1].name == "step-00000015"


def test_other_data_and_another_model_are_refused_and_nothing_is_set_aside(tmp_path: Path) -> None:
    toy.go(tmp_path)
    before = found(tmp_path / "checkpoints")
    task = toy.Toy()
    task.fingerprint = "other"
    with pytest.raises(CheckpointError, match="trained on other data; put that back, or train into a new folder"):
        toy.go(tmp_path, task)
    run = toy.fresh(tmp_path, toy.config(), dim=2 * toy.DIM)
    with pytest.raises(CheckpointError, match=r"of another model; resume it with its own recipe\.toml"):
        train(run, toy.Toy(), toy.config())
    assert found(tmp_path / "checkpoints") == before


def test_several_optimizers_are_nothing_special(tmp_path: Path) -> None:
    def two(folder: Path) -> Any:
        run = toy.fresh(folder, toy.config())
        bias = [p for p in run.model.parameters() if p.ndim < 2]
        matrices = [p for p in run.model.parameters() if p.ndim >= 2]
        run.optimizers = {"slow": torch.optim.SGD(bias, 0.1, momentum=0.9), "fast": torch.optim.AdamW(matrices)}
        return run

    with pytest.raises(Stopped):
        train(two(tmp_path / "a"), told(9, signal.SIGTERM), toy.config(), lambda text: None)
    train(two(tmp_path / "a"), toy.Toy(), toy.config(), lambda text: None)
    train(two(tmp_path / "b"), toy.Toy(), toy.config(), lambda text: None)
    assert end_of(tmp_path / "a") == end_of(tmp_path / "b")
