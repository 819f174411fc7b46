"""The loop. A step is a function of the run and of its number alone, so a run that was stopped goes on bit for bit."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from regard.config import TrainConfig
from regard.device import is_current
from regard.errors import ConfigError, RegardError, nearest
from regard.tasks import Loss, Steady, Task
from regard.training import optim
from regard.training.bad import bad_step
from regard.training.checkpoint import Say
from regard.training.compiled import compile_in_place, graphs
from regard.training.crowd import Crowd
from regard.training.feed import Feed
from regard.training.flops import flops_per_token
from regard.training.keep import finish, is_final, leave, resume, save, unsaved
from regard.training.log import Log, write_environment
from regard.training.numbers import Coming, Sums, finite, unfit
from regard.training.recorded import Graphs, Recorded, unsteady
from regard.training.run import Run, due, micro_batches, over
from regard.training.state import undisturbed
from regard.training.stop import Interrupted, Stop

BETTER_LOWER = ("loss", "perplexity", "bits", "error")  # a name that ends so: free_perplexity, squared_error


def train(run: Run, task: Task, config: TrainConfig, say: Say = print) -> None:
    """Trains to the last step, from the newest checkpoint in the run's folder where there is one."""
    resume(run, task, config, say)
    if over(run, config) and is_final(run, say):
        say(f"{run.folder}: finished at step {run.step}; nothing to do")
        return
    with Stop(config.stop_after) as stop, begin(run, task, config, say) as log:
        step = Steps(run, task, config, log)
        while not stop.asked:
            if unmeasured(run, config) and not evaluate(run, task, config, log, stop):
                continue
            look(run, task, config, log)
            if unsaved(run, config):
                save(run, task, config, log)
            if over(run, config):
                finish(run, config, log)
                if made := step.about():
                    log.say(made)
                return
            step()
        step.settle()
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


# ---- one step

Learn = Callable[[Any, Any], Loss]  # a batch and the carry -> the loss, its gradients added


class Made(NamedTuple):
    """A step whose numbers have not been read yet."""

    step: int
    tokens: int
    rate: float
    numbers: Coming


class Steps:
    """Updates, one after another. Where a GPU leaves out by itself what is no number, the host is a step ahead of it,
    and reads the numbers of a step while the next is at work.
    """

    def __init__(self, run: Run, task: Task, config: TrainConfig, log: Log) -> None:
        self.run, self.task, self.config, self.log = run, task, config, log
        self.learn = learning(run, task, config, log.say)
        steady = isinstance(self.learn, Recorded)
        with autocast(run.device, config.precision):  # which precision it is decides what batches are like
            self.feed = Feed(run, task, steady=steady)
        self.ahead = steady and config.on_nan == "raise" and optim.leaves_out(run.optimizers)
        self.waiting: deque[Made] = deque()
        self.since = 0.0
        self.crowd = Crowd(torch.get_num_threads() if run.device.type == "cpu" else 1)

    def __call__(self) -> None:
        """One update, or none where a number is not finite."""
        run, config = self.run, self.config
        if not self.waiting:
            self.since = time.perf_counter()
        buffers = [(buffer, buffer.clone()) for buffer in run.model.buffers()] if config.on_nan == "skip" else []
        sums, carry, tokens = gradients(run, self.task, config, self.feed, self.learn)
        sums["norm"] = scale(run, sums["count"], config.clip)
        numbers = Coming(sums)
        if self.ahead or finite(numbers.read()):
            rate = update(run, config, unless=unfit(sums) if self.ahead else None)
            run.carry, run.skipped, run.step = carry, 0, run.step + 1
            self.waiting.append(Made(run.step, tokens, rate, numbers))
            self.settle(1 if self.ahead and not self._awaited() else 0)
        else:
            for buffer, before in buffers:
                buffer.copy_(before)
            bad_step(run, self.task, config, self.log, numbers.read())
        run.model.zero_grad()

    def settle(self, leave: int = 0) -> None:
        """Reads what waits, but for the last so many."""
        while len(self.waiting) > leave:
            self._note(self.waiting.popleft())

    def _note(self, made: Made) -> None:
        run, config, numbers = self.run, self.config, made.numbers.read()
        if not finite(numbers):
            run.step = made.step - 1
            bad_step(run, self.task, config, self.log, numbers)
        since, self.since = self.since, time.perf_counter()
        tally(run, numbers | {"tokens": made.tokens, "seconds": self.since - since, "steps": 1})
        self.log.step(made.step)
        if due(made.step, config.log_every) or made.step == config.steps:
            told = {"epoch": self.task.epoch(made.step, run.world), "rate": made.rate, **summary(run)}
            self.log.train(made.step, told)
            if word := self.crowd.word():
                self.log.say(word)

    def _awaited(self) -> bool:
        """Whether somebody asks after this step how it went."""
        config, step = self.config, self.run.step
        every = (config.log_every, config.evaluate_every, config.save_every)
        return over(self.run, config) or any(due(step, some) for some in every)

    def about(self) -> str:
        """What was made once, to be used again."""
        recorded = len(self.learn.takes) if isinstance(self.learn, Recorded) else 0
        made = [f"compiled {graphs()} graphs"] * self.config.compile + [f"recorded {recorded} shapes"] * bool(recorded)
        return ", ".join(made)


def learning(run: Run, task: Task, config: TrainConfig, say: Say = print) -> Learn:
    """How a batch is learnt from: recorded where that is wanted and can be, else plainly."""
    reason = unrecordable(run, task)
    if config.record == "always" and reason:
        raise ConfigError(f'train.record = "always", but {reason}; write "auto"')
    if config.record == "never" or reason or not isinstance(task, Steady):
        return added(run, config, task.loss)
    return Recorded(run.model, task, added(run, config, task.cost), Graphs(), say)


def unrecordable(run: Run, task: Task) -> str:
    """Why steps cannot be recorded; nothing where they can."""
    if run.device.type != "cuda":
        return "only a GPU replays what was recorded"
    if not is_current(run.device):
        return f"{run.device} is not the current GPU; call torch.cuda.set_device({run.device.index}) before"
    own = getattr(task.loss, "__func__", None) is not Steady.loss  # of whoever made another of a task of ours
    if own or not (isinstance(task, Steady) and task.steady):
        return "the loss of this task may go another way with each batch"
    return unsteady(run.model)


def added(run: Run, config: TrainConfig, loss_of: Callable[[nn.Module, Any, Any], Loss]) -> Learn:
    """Adds the gradients of the loss to those that are there."""

    def learn(batch: Any, before: Any) -> Loss:
        with autocast(run.device, config.precision):
            loss = loss_of(run.model, batch, before)
        torch.autograd.backward(loss.total)
        return loss

    return learn


def gradients(
    run: Run, task: Task, config: TrainConfig, feed: Feed, learn: Learn | None = None
) -> tuple[Sums, Any, int]:
    """Adds up the gradients of the summed loss over all micro-batches: those of one big batch, but for the count."""
    learn = learn or added(run, config, task.loss)
    sums: Sums = {}
    carry, tokens = run.carry, 0
    for index in micro_batches(run, config):
        batch = feed(index)
        loss = learn(batch, carry)
        feed.fetch(index + 1)
        parts: Sums = {"loss": loss.total, "count": loss.count, **loss.parts}
        for name, value in parts.items():
            sums[name] = sums.get(name, 0) + (value.detach() if isinstance(value, Tensor) else value)
        carry, tokens = loss.carry, tokens + batch.tokens
    return sums, carry, tokens


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
    """At once: the host waits for the device."""
    return Coming(sums).read()


def update(run: Run, config: TrainConfig, *, unless: Tensor | None = None) -> float:
    """One step of the optimizers, at the rate that it gives; none `unless` is 0, which only the device need know."""
    rate = optim.rate(run.step + 1, config, run.dim, run.cuts)
    for optimizer in run.optimizers.values():
        optimizer.found_inf = unless  # type: ignore[attr-defined]
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
