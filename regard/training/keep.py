"""What is kept of a run: checkpoints on the way, model.safetensors at the end; and how it is taken up again."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.config import TrainConfig
from regard.errors import CheckpointError, Diverged, RegardError
from regard.tasks import Task
from regard.training import checkpoint
from regard.training.checkpoint import Say, Snapshot, step_of
from regard.training.log import Log, read_metrics
from regard.training.run import Run, due, fingerprint, over, snapshot, take_up
from regard.training.stop import Stop, Stopped
from regard.weights import Corrupt, load_weights, put_weights, save_weights


def resume(run: Run, task: Task, config: TrainConfig, say: Say) -> None:
    """Takes up the newest good checkpoint, where there is one."""

    def accept(saved: Snapshot) -> None:
        take_up(run, saved, task)
        if saved.state.get("config") != fingerprint(config) or saved.state.get("world") != run.world:
            say(f"the settings have changed since step {run.step}: the run goes on, equivalent but not bit for bit")

    checkpoint.tidy(run.checkpoints)
    if checkpoint.restore(run.checkpoints, accept, say) is None and (error := damage(run)):
        what = f"{error}; no checkpoint is left to make it again from"
        raise CheckpointError(f"{what}: put a good copy back, or train into a new folder")


def unsaved(run: Run, config: TrainConfig) -> bool:
    wanted = due(run.step, config.save_every) or run.step == run.best_step or over(run, config)
    return wanted and run.saved != (run.step, run.evaluated)


def save(run: Run, task: Task, config: TrainConfig, log: Log) -> None:
    """A checkpoint, and away with those that are no longer needed. A full disk is said, and remembered for the end."""
    if not torch.stack([parameter.isfinite().all() for parameter in run.model.parameters()]).all():
        what = f"step {run.step}: a weight is no longer a number, so nothing was saved"
        raise Diverged(f"{what}; lower train.rate and resume from the checkpoint before")
    if due(run.step, config.save_every):
        run.rewinds = 0
    try:
        log.journal.sync()
        checkpoint.save(run.checkpoints, snapshot(run, task, config))
        run.saved = (run.step, run.evaluated)
        checkpoint.discard(unneeded(run, config))
    except OSError as error:
        run.troubles.append(f"step {run.step} could not be saved: {error.strerror}")
        log.say(f"warning: {run.troubles[-1]}; training goes on")


def unneeded(run: Run, config: TrainConfig) -> list[Path]:
    """All but this step, the best, and the last regular ones: as many as are to be kept, or averaged at the end."""
    paths = checkpoint.found(run.checkpoints)
    last = max(config.keep, config.average if config.final == "average" else 0)
    regular = [step_of(path) for path in paths if due(step_of(path), config.save_every)]
    return [path for path in paths if step_of(path) not in {run.step, run.best_step, *regular[-last:]}]


def leave(run: Run, task: Task, config: TrainConfig, log: Log, stop: Stop) -> None:
    """Saves and says goodbye."""
    now = (run.step, run.evaluated)
    if run.saved != now:
        save(run, task, config, log)
    if run.saved != now:
        raise RegardError(f"stopped by {stop.reason}, but {run.troubles[-1]}; make room and resume {run.folder}")
    where = f" at step {run.step} of {config.steps}, which is saved"
    raise Stopped(stop.reason, f"{where}; go on with: regard resume {run.folder}", stop.code)


def finish(run: Run, config: TrainConfig, log: Log) -> None:
    """The chosen weights become the model's, and model.safetensors. What went wrong on the way is said at last."""
    which, steps = config.final, chosen(run, config)
    if which == "best" and run.best_step is None:  # nothing was measured
        which = "last"
    if run.step < config.steps:
        log.say(f"stopped early: no better {config.metric} in {run.worse} evaluations")
    try:
        if steps != [run.step]:
            put_weights(run.model, checkpoint.average([checkpoint.path_of(run.checkpoints, step) for step in steps]))
    except CheckpointError as error:
        run.troubles.append(f"the {which} weights are gone and the last were taken: {error}")
        which, steps = "last", [run.step]
    try:
        save_weights(run.folder / "model.safetensors", run.model, run.vocabulary)
        log.final(run.step, which, steps)
    except OSError as error:
        run.troubles.append(f"model.safetensors could not be written: {error.strerror}")
    troubles = [*run.troubles, *log.journal.troubles]
    if troubles:
        more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        raise RegardError(f"{run.folder}: trained to step {run.step}, but {troubles[-1]}{more}; make room and resume")


def chosen(run: Run, config: TrainConfig) -> list[int]:
    """The steps whose weights, averaged, are the final model. Those saved for a signal must not make a difference."""
    if config.final == "best" and run.best_step is not None:
        return [run.best_step]
    if config.final == "average":
        saved = [step_of(path) for path in checkpoint.found(run.checkpoints)]
        regular = [step for step in saved if step > 0 and (due(step, config.save_every) or step == run.step)]
        return regular[-config.average :]
    return [run.step]


def is_final(run: Run, say: Say) -> bool:
    """Whether `finish` has done its work for this very step. What was damaged since is set aside, to be made again."""
    lines, path = read_metrics(run.folder / "metrics.jsonl"), run.folder / "model.safetensors"
    if not path.exists() or not any("final" in line and line["step"] == run.step for line in lines):
        return False
    if error := damage(run):
        checkpoint.set_aside(path, error, say)
    return error is None


def damage(run: Run) -> Corrupt | None:
    """Why model.safetensors cannot be read; None where it can be, or is not there."""
    path = run.folder / "model.safetensors"
    try:
        if path.exists():
            load_weights(path)
    except Corrupt as error:
        return error
    return None
