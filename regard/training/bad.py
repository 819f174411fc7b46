"""Steps that went wrong: the loss or a gradient was not a number, and the weights have not been touched."""

from __future__ import annotations

import json
import math
from typing import Any

from regard.config import TrainConfig
from regard.disk import write
from regard.errors import Diverged
from regard.tasks import Task
from regard.training import checkpoint
from regard.training.checkpoint import step_of
from regard.training.log import Log, plain
from regard.training.run import Run, due, micro_batches, take_up

IN_A_ROW = 10  # steps to skip, or returns to one checkpoint, before we give up


def bad_step(run: Run, task: Task, config: TrainConfig, log: Log, numbers: dict[str, float]) -> None:
    """`raise` ends the run, `skip` leaves the batch out, `rewind` goes back to a checkpoint and on with other data."""
    loss = numbers["loss"] / numbers["count"] if numbers["count"] else math.nan
    file, ids = note_batch(run, task, config, log, numbers)
    what = f"step {run.step + 1}: loss {loss:.4g}, gradient norm {numbers['norm']:.4g} on the batch in {file} ({ids})"
    match config.on_nan:
        case "skip" if run.skipped < IN_A_ROW:
            run.skipped, run.step = run.skipped + 1, run.step + 1
            log.bad(run.step, {"loss": loss, "norm": numbers["norm"]}, file)
            log.say(f"{what}; skipped, {run.skipped} in a row")
        case "rewind" if run.rewinds < IN_A_ROW:
            rewind(run, task, config, log, what)
        case "raise":
            raise Diverged(f'{what}; lower train.rate, or set train.on_nan to "skip" or "rewind"')
        case policy:
            raise Diverged(
                f"{what}; {policy} did not help {IN_A_ROW} times in a row: lower train.rate, or look at the data"
            )


def note_batch(run: Run, task: Task, config: TrainConfig, log: Log, numbers: dict[str, float]) -> tuple[str, str]:
    """Writes down which examples it was. A batch is a function of its number, so it can be asked for again."""
    batches = {index: task.batch("train", index, run.rank, run.world).ids for index in micro_batches(run, config)}
    ids = [name for names in batches.values() for name in listed(names)]
    note = {"step": run.step + 1, **numbers, "batches": list(batches), "ids": ids}
    path = run.folder / f"nan-{run.step + run.shift + 1:08d}.json"  # numbered by its data: the step, until a rewind
    try:
        write(path, json.dumps(plain(note), indent=1, default=str).encode())
    except OSError as error:
        log.say(f"warning: {path} could not be written: {error.strerror}")
    more = f" and {len(ids) - 4} more" if len(ids) > 4 else ""
    return path.name, f"ids {', '.join(map(str, ids[:4]))}{more}"


def listed(ids: Any) -> list[Any]:
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


def rewind(run: Run, task: Task, config: TrainConfig, log: Log, what: str) -> None:
    """Back to the last regular checkpoint, and on with the data that would have come after the bad step.

    Checkpoints made for a signal or a best result do not count: where we go back to must not depend on interruptions.
    """
    paths = checkpoint.found(run.checkpoints)
    target = max((step_of(path) for path in paths if due(step_of(path), config.save_every)), default=None)
    if target is None:
        raise Diverged(f"{what}; there is no checkpoint to rewind to: lower train.rate, or look at the data")
    next_data, rewinds = run.step + run.shift + 1, run.rewinds + 1
    checkpoint.discard([path for path in paths if step_of(path) > target])
    checkpoint.restore(run.checkpoints, lambda saved: take_up(run, saved, task), log.say)
    run.shift, run.rewinds = next_data - run.step, rewinds
    log.journal.forget(run.step, run.evaluated)
    log.say(f"{what}; back to step {run.step}, and on with the data after it")
