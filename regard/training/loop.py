"""The loop. A step is a function of the run and of its number alone, so a run that was stopped goes on bit for bit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from regard.config import TrainConfig
from regard.core.block import Block
from regard.core.head import Head
from regard.errors import ConfigError, RegardError, nearest
from regard.tasks import Task
from regard.training import optim
from regard.training.bad import bad_step
from regard.training.checkpoint import Say
from regard.training.flops import flops_per_token
from regard.training.keep import finish, is_final, leave, resume, save, unsaved
from regard.training.log import Log, write_environment
from regard.training.run import Run, due, micro_batches, over
from regard.training.state import undisturbed
from regard.training.stop import Interrupted, Stop

BETTER_LOWER = ("loss", "perplexity", "bits", "error")  # a name that ends so: free_perplexity, squared_error

Sums = dict[str, Any]  # tensors on the device, and plain numbers


def train(run: Run, task: Task, config: TrainConfig, say: Say = print) -> None:
    """Trains to the last step, from the newest checkpoint in the run's folder where there is one."""
    resume(run, task, config, say)
    if over(run, config) and is_final(run):
        say(f"{run.folder}: finished at step {run.step}; nothing to do")
        return
    with Stop(config.stop_after) as stop, begin(run, task, config, say) as log:
        feed = Feed(run, task)
        while not stop.asked:
            if unmeasured(run, config) and not evaluate(run, task, config, log, stop):
                continue
            look(run, task, config, log)
            if unsaved(run, config):
                save(run, task, config, log)
            if over(run, config):
                finish(run, config, log)
                return
            step(run, task, config, feed, log)
        leave(run, task, config, log, stop)


def begin(run: Run, task: Task, config: TrainConfig, say: Say) -> Log:
    if run.saved is not None:
        say(f"{run.folder}: going on from step {run.step}")
    if not run.flops_per_token:
        batch = task.batch("train", micro_batches(run, config)[0], run.rank, run.world).to(run.device)
        with autocast(run.device, config.precision):
            run.flops_per_token = flops_per_token(run.model, task, batch, run.carry)
    if config.compile:
        compile_in_place(run.model)
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_environment(run.folder, config, run.device, say)
        return Log(run.folder, config, say, step=run.step, evaluated=run.evaluated)
    except OSError as error:
        what = f"{run.folder}: cannot be written: {error.strerror}"
        raise RegardError(f"{what}; make room, or train into another folder") from None


def compile_in_place(model: nn.Module, backend: str = "inductor") -> None:
    """Block by block, and the head: one graph serves all blocks of a kind, so that compiling takes seconds, where the
    whole model takes minutes. What differs from batch to batch is found out by the second or third. Parameters keep
    their names.
    """
    parts = [part for part in model.modules() if isinstance(part, Block | Head)]
    if not any(isinstance(part, Block) for part in parts):
        raise ConfigError("train.compile: this system has no blocks that could be compiled; leave it out")
    for part in parts:
        part.compile(backend=backend)


# ---- one step


def step(run: Run, task: Task, config: TrainConfig, feed: Feed, log: Log) -> None:
    """One update, or none where a number is not finite."""
    started = time.perf_counter()
    buffers = [(buffer, buffer.clone()) for buffer in run.model.buffers()] if config.on_nan == "skip" else []
    sums, carry, tokens = gradients(run, task, config, feed)
    sums["norm"] = scale(run, sums["count"], config.clip)
    numbers = read(sums)
    if math.isfinite(numbers["loss"]) and math.isfinite(numbers["norm"]):
        rate = update(run, config)
        run.carry, run.skipped, run.step = carry, 0, run.step + 1
        tally(run, numbers | {"tokens": tokens, "seconds": time.perf_counter() - started, "steps": 1})
        log.step(run.step)
        if due(run.step, config.log_every) or run.step == config.steps:
            log.train(run.step, {"epoch": task.epoch(run.step, run.world), "rate": rate, **summary(run)})
    else:
        for buffer, before in buffers:
            buffer.copy_(before)
        bad_step(run, task, config, log, numbers)
    run.model.zero_grad()


def gradients(run: Run, task: Task, config: TrainConfig, feed: Feed) -> tuple[Sums, Any, int]:
    """Adds up the gradients of the summed loss over all micro-batches: those of one big batch, but for the count."""
    sums: Sums = {}
    carry, tokens = run.carry, 0
    for index in micro_batches(run, config):
        batch = feed(index)
        with autocast(run.device, config.precision):
            loss = task.loss(run.model, batch, carry)
        torch.autograd.backward(loss.total)
        feed.fetch(index + 1)
        parts: Sums = {"loss": loss.total, "count": loss.count, **loss.parts}
        for name, value in parts.items():
            sums[name] = sums.get(name, 0) + (value.detach() if isinstance(value, Tensor) else value)
        carry, tokens = loss.carry, tokens + batch.tokens
    return sums, carry, tokens


class Feed:
    """Training batches by number. The next is fetched while the device is still at work on the last."""

    def __init__(self, run: Run, task: Task) -> None:
        self.run = run
        self.task = task
        self.index, self.batch = -1, None

    def __call__(self, index: int) -> Any:
        if index != self.index:
            self.fetch(index)
        return self.batch

    def fetch(self, index: int) -> None:
        batch = self.task.batch("train", index, self.run.rank, self.run.world)
        self.index, self.batch = index, batch.to(self.run.device)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16" or (precision == "auto" and gpu))


def scale(run: Run, count: Tensor | int, clip: float) -> Tensor:
    """Divides the gradients by the count and shortens them to the norm `clip`, in one go. Gives the norm before."""
    groups = [group for optimizer in run.optimizers.values() for group in optimizer.param_groups]
    grads = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
    norm = get_total_norm(grads) / count
    torch._foreach_mul_(grads, (clip / norm.clamp(min=clip) if clip else torch.ones_like(norm)) / count)
    return norm


def read(sums: Sums) -> dict[str, float]:
    """The step's one wait for the device."""
    waiting = {name: value for name, value in sums.items() if isinstance(value, Tensor)}
    arrived = torch.stack([value.double() for value in waiting.values()]).tolist()
    return {**sums, **dict(zip(waiting, arrived, strict=True))}


def update(run: Run, config: TrainConfig) -> float:
    rate = optim.rate(run.step + 1, config, run.dim, run.cuts)
    for optimizer in run.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return rate


def tally(run: Run, numbers: dict[str, float]) -> None:
    run.tokens += int(numbers["tokens"])
    run.seconds += numbers["seconds"]
    for name, value in numbers.items():
        run.interval[name] = run.interval.get(name, 0) + value


def summary(run: Run) -> dict[str, float]:
    """Means since the last summary (over tokens, of what was summed over tokens), and totals of the whole run."""
    sums, run.interval = run.interval, {}
    count, steps, tokens, seconds, norm = (sums.pop(name) for name in ("count", "steps", "tokens", "seconds", "norm"))
    return {
        **{name: total / count for name, total in sums.items()},
        "norm": norm / steps,
        "tokens_per_second": tokens / seconds,
        "seconds_per_step": seconds / steps,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "flops": run.flops_per_token * run.tokens,
    }


# ---- evaluation


def unmeasured(run: Run, config: TrainConfig) -> bool:
    return run.evaluated < run.step and (due(run.step, config.evaluate_every) or run.step >= config.steps)


def evaluate(run: Run, task: Task, config: TrainConfig, log: Log, stop: Stop) -> bool:
    """Measures the model as it will be used: eval mode, full precision. False where we were told to stop meanwhile."""
    try:
        with undisturbed(), at_rest(run.model), torch.no_grad(), stop.dropping():
            metrics = task.evaluate(run.model, "valid")
    except Interrupted:
        return False
    if not metrics:  # no validation split, so nothing is best
        run.evaluated = run.step
        return True
    if config.metric not in metrics:
        raise ConfigError(f"train.metric: the task measures no {config.metric!r}; {nearest(config.metric, metrics)}")
    value = float(metrics[config.metric])
    best = better(value, run.best, config.metric)
    if best:
        run.best, run.best_step = value, run.step
    run.evaluated, run.worse = run.step, 0 if best else run.worse + 1
    run.metrics = {name: float(number) for name, number in metrics.items()}
    if config.schedule == "plateau":
        remember(run, value, config)
    log.evaluation(run.step, metrics, best=best)
    return True


def look(run: Run, task: Task, config: TrainConfig, log: Log) -> None:
    """Where the model looks in one held-out text, whenever the log has a line: so an alignment is seen to come about.

    It is for those who watch: where it goes wrong, that is said once, and training goes on.
    """
    wanted = due(run.step, config.log_every) or due(run.step, config.save_every) or over(run, config)
    if not wanted or run.looked in (None, run.step) or not hasattr(task, "look"):
        return
    run.looked = run.step
    eager = torch.compiler.set_stance("force_eager") if config.compile else nullcontext()  # once is not worth a graph
    try:
        with undisturbed(), at_rest(run.model), eager:
            if found := task.look(run.model):
                log.look(run.step, vars(found))
    except (RegardError, RuntimeError, OSError) as error:
        run.looked = None
        log.say(f"warning: step {run.step} could not be looked at: {error}; training goes on")


def better(value: float, best: float | None, metric: str) -> bool:
    """A NaN is never the best, not even the first."""
    if math.isnan(value):
        return False
    return best is None or (value < best if metric.split("_")[-1] in BETTER_LOWER else value > best)


def remember(run: Run, value: float, config: TrainConfig) -> None:
    """A plateau: as many evaluations as are looked back on were all better than this one, so the rate is cut."""
    full = len(run.recent) == config.recent
    run.cuts += full and all(better(before, value, config.metric) for before in run.recent)
    run.recent = [*run.recent, value][-config.recent :]


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards each module is as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
