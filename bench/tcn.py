"""Training sequence models without attention: our TCN against the authors' block, our LSTM against a plain loop.

    python -m bench.tcn    # CPU, or the GPU where there is one

The block is written here from its description: convolutions padded on both sides, what comes of the right padding cut
off and copied, torch's weight_norm. The plain loop is the one of PyTorch's example of a word language model at its
default size: nn.LSTM, a tied linear layer, log_softmax and the loss of all words. Each has our weights and loses what
we lose; batches, dropout, clipping and optimizer (Adam, or SGD for words; fused) are the same, so that what is raced is
a model with its loss, forward and backward, and nothing else; ours is made ready as `regard train` makes it. On a CPU
each engine has processes of its own (bench/apart.py). Where one number is asked at the end of a sequence, ours leaves
out what that does not depend on (`conclude`); the authors' block has no such thing.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import apart
from bench.harness import Comparison, race, refuse_others, report
from regard.core.state import State, each
from regard.fast import quicken
from regard.models import recurrent
from regard.models.tcn import TCN, Config, Level

Step = Callable[[], None]
Losing = Callable[[], Tensor]  # one batch through a model
Engine = tuple[nn.Module, Losing]


@dataclass(frozen=True)
class Work:
    """One of the published tasks: its network, the shape of a batch, and what is asked of it."""

    name: str
    config: dict[str, Any]
    rows: int
    steps: int
    asked: str  # a number at the end; a label or keys at each step; or the next of the words
    updates: int  # in one measurement


def works(device: str) -> list[Work]:
    """At the batch sizes of the authors' code; on a CPU the two largest networks get 2 and 4 rows."""
    more, rows = (20, (32, 16)) if device == "cuda" else (1, (2, 4))
    return [
        Work("adding", {"size": "adding", "inputs": 2, "labels": 1}, 32, 600, "number", more),
        Work("copy", {"size": "copy", "inputs": 1, "labels": 10}, 32, 1020, "label", more),
        Work("JSB chorales", {"size": "jsb", "inputs": 88, "labels": 88}, 1, 60, "keys", 20),
        Work("Nottingham", {"size": "nottingham", "inputs": 88, "labels": 88}, 1, 250, "keys", 3 * more),
        Work("characters of PTB", {"size": "characters", "vocab": 50}, rows[0], 400, "words", more),
        Work("words of PTB", {"size": "words", "vocab": 10_000}, rows[1], 80, "words", more),
    ]


@dataclass(frozen=True)
class Contest:
    make: Callable[[str], dict[str, Engine]]  # both sides, on a device; ours first
    steps: int  # of a batch
    updates: int  # in one measurement

    def run(self, update: Step) -> Callable[[], float]:
        def work() -> float:
            for _ in range(self.updates):
                update()
            return float(self.steps * self.updates)

        return work


UNIT = "steps/s"
LSTM: dict[str, Any] = {"vocab": 33_278, "dim": 200, "embedding": 200, "layers": 2, "dropout": 0.2}
ROWS, STEPS = 20, 35
LOOP = f"LSTM, {LSTM['vocab']:,} words"
WORDS = LOOP, "characters of PTB", "words of PTB"
OURS, AUTHORS, PLAIN = "regard", "the authors' block", "plain nn.LSTM loop"
ROUNDS = 19  # of little work each, so that both of a pair meet the same neighbours on a busy machine


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = [*(on_a_gpu() if device == "cuda" else on_a_cpu())]
    note = (
        "The networks of Bai et al. (2018), Table 2, with rows × steps a batch of "
        f"{', '.join(f'{work.name} {work.rows} × {work.steps}' for work in works(device))}; random numbers and words. "
        f"The LSTM is that of PyTorch's example of a word language model: {LSTM['layers']} layers of {LSTM['dim']} "
        f"units, {LSTM['vocab']:,} words, {ROWS} × {STEPS}, its state carried on. Same weights, same optimizer, no "
        f"compile{'. Each engine in processes of its own, at its best number of threads' if device == 'cpu' else ''}."
    )
    report("tcn", "Training a TCN against the authors' block, and an LSTM against a plain loop", note, found)


def contests(device: str) -> dict[str, Contest]:
    found = {
        work.name: Contest(partial(networks, work), work.rows * work.steps, work.updates) for work in works(device)
    }
    return found | {LOOP: Contest(lstms, ROWS * STEPS, 20 if device == "cuda" else 1)}


def on_a_gpu() -> Iterator[Comparison]:
    """Where engines share it, in one process."""
    for precision in ("bf16", "fp32"):
        for name, contest in contests("cuda").items():
            made = contest.make("cuda")
            check(name, [loss_of(*engine) for engine in made.values()])
            runs = {engine: contest.run(trainer(*some, name, "cuda", precision)) for engine, some in made.items()}
            found = race(f"{name}, {precision}", UNIT, runs, rounds=ROUNDS, warm=1)
            print(found.name, {engine: round(found.rate(engine)) for engine in runs}, file=sys.stderr, flush=True)
            yield found


def on_a_cpu() -> Iterator[Comparison]:
    with ExitStack() as stack:
        sides = [stack.enter_context(apart.engines(alone, side)) for side in range(2)]
        for name, contest in contests("cpu").items():
            peer = PLAIN if name == LOOP else AUTHORS
            able = {
                engine: {way: partial(one, name) for way, one in ways.items()}
                for engine, ways in zip((OURS, peer), sides, strict=True)
            }
            check(name, [apart.any_of(ways)("loss") for ways in able.values()])
            done = contest.steps * contest.updates
            yield apart.compare(f"{name}, fp32", done, able, unit=UNIT, rounds=ROUNDS)


def alone(_: int, side: int) -> apart.Run:
    """One side of all contests, in a process of its own: it learns, or says what it loses at first."""

    @cache
    def made(name: str) -> tuple[float, Callable[[], float]]:
        contest = contests("cpu")[name]
        engine = [*contest.make("cpu").values()][side]
        return loss_of(*engine), contest.run(trainer(*engine, name, "cpu", "fp32"))

    def run(name: str, asked: str = "") -> float:
        lost, learn = made(name)
        return lost if asked == "loss" else learn()

    return run


def loss_of(model: nn.Module, loss: Losing) -> float:
    """Without dropout."""
    model.eval()
    with torch.no_grad():
        found = float(loss())
    model.train()
    return found


def check(name: str, lost: Sequence[float]) -> None:
    """All lose the same: they compute the same."""
    assert all(math.isclose(lost[0], other, rel_tol=1e-3) for other in lost), (name, lost)


def trainer(model: nn.Module, loss_of: Losing, name: str, device: str, precision: str) -> Step:
    """One update; the same for all."""
    kind = torch.optim.SGD if name in WORDS else torch.optim.Adam
    optimizer: torch.optim.Optimizer = kind(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---- TCN


def networks(work: Work, device: str) -> dict[str, Engine]:
    torch.manual_seed(0)
    config = Config(**work.config)
    model = TCN(config).to(device)
    quicken(model)
    theirs = Authors(model).to(device)
    x, wanted = batch(work, config, device)

    def ours() -> Tensor:
        if work.asked == "number":
            return loss(work, model.labels(model.conclude(x)), wanted)
        hidden, _ = model(None, None, x)
        if work.asked == "words":
            told = model.head(hidden, wanted)
            return told.total / told.count
        return loss(work, model.labels(hidden), wanted)

    def plain() -> Tensor:
        hidden = theirs(x)
        told = theirs.output(hidden[:, -1] if work.asked == "number" else hidden)
        return loss(work, told, wanted)

    return {OURS: (model, ours), AUTHORS: (theirs, plain)}


def batch(work: Work, config: Config, device: str) -> tuple[Tensor, Tensor]:
    shape = work.rows, work.steps
    if work.asked == "words":
        words = torch.randint(4, config.vocab or 0, (work.rows, work.steps + 1), device=device)
        return words[:, :-1], words[:, 1:]
    x = torch.rand(*shape, config.inputs or 0, device=device)
    if work.asked == "number":
        return x, torch.rand(work.rows, 1, device=device)
    if work.asked == "label":
        return x, torch.randint(config.labels or 0, shape, device=device)
    return x, torch.rand(*shape, config.labels or 0, device=device).round()


def loss(work: Work, told: Tensor, wanted: Tensor) -> Tensor:
    match work.asked:
        case "number":
            return F.mse_loss(told, wanted)
        case "keys":
            return F.binary_cross_entropy_with_logits(told, wanted)
        case _:
            return F.cross_entropy(told.flatten(0, 1), wanted.flatten())


class Padded(nn.Module):
    """Padded on both sides; what comes of the right one is cut off, and the rest copied."""

    def __init__(self, narrow: int, wide: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.beyond = (kernel - 1) * dilation
        conv = nn.Conv1d(narrow, wide, kernel, padding=self.beyond, dilation=dilation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its successor takes longer
            self.conv = nn.utils.weight_norm(conv)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[:, :, : -self.beyond].contiguous()


class Block(nn.Module):
    """Ours in the authors' hands, on (B, C, T)."""

    def __init__(self, ours: Level, dropout: float) -> None:
        super().__init__()
        wide, kernel, narrow = ours.first.v.shape
        first, second = (Padded(n, wide, kernel, ours.first.dilation) for n in (narrow, wide))
        self.body = nn.Sequential(first, nn.ReLU(), nn.Dropout(dropout), second, nn.ReLU(), nn.Dropout(dropout))
        self.beside = nn.Conv1d(narrow, wide, 1) if narrow != wide else None
        for mine, its in ((ours.first, first.conv), (ours.second, second.conv)):
            its.load_state_dict({"weight_g": mine.g[:, None, None], "weight_v": mine.v.mT, "bias": mine.bias})
        if self.beside is not None:
            held = ours.skip.state_dict()
            self.beside.load_state_dict(held | {"weight": held["weight"][..., None]})

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + (x if self.beside is None else self.beside(x)))


class Authors(nn.Module):
    def __init__(self, ours: TCN) -> None:
        super().__init__()
        config = ours.config
        tokens = config.inputs is None
        self.words = nn.Embedding(*ours.words.weight.shape) if tokens else None
        self.drop = nn.Dropout(config.embedding_dropout)
        self.blocks = nn.Sequential(*(Block(level, config.dropout) for level in ours.levels))  # type: ignore[arg-type]
        last = ours.head if tokens else ours.labels
        self.output = nn.Linear(last.weight.shape[1], last.weight.shape[0])
        self.output.load_state_dict(last.state_dict())
        if self.words is not None:
            self.words.load_state_dict(ours.words.state_dict())
            self.output.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.words is not None:
            x = self.drop(self.words(x))
        y: Tensor = self.blocks(x.transpose(1, 2)).transpose(1, 2)
        return y


# ---- LSTM


class Loop(nn.Module):
    """PyTorch's example: time first, and the logits of all words."""

    def __init__(self, ours: recurrent.LanguageModel) -> None:
        super().__init__()
        c = ours.config
        self.drop, self.words = nn.Dropout(c.dropout), nn.Embedding(c.vocab or 0, c.embedding)
        self.rnn = nn.LSTM(c.embedding, c.dim, c.layers, dropout=c.dropout)
        self.output = nn.Linear(c.dim, c.vocab or 0)
        self.output.weight = self.words.weight
        self.rnn.load_state_dict(ours.rnn.body.state_dict())
        self.words.load_state_dict(ours.words.state_dict())

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.rnn(self.drop(self.words(x)), state)
        return F.log_softmax(self.output(self.drop(y)).flatten(0, 1), -1), state


def lstms(device: str) -> dict[str, Engine]:
    torch.manual_seed(0)
    model = recurrent.LanguageModel(recurrent.Config(**LSTM)).to(device)
    quicken(model)
    theirs = Loop(model).to(device)
    nn.init.zeros_(theirs.output.bias)  # as ours is at first
    words = torch.randint(4, LSTM["vocab"], (ROWS, STEPS + 1), device=device)
    x, wanted = words[:, :-1].T.contiguous(), words[:, 1:].T.flatten()
    state: dict[str, Any] = {"ours": None, "theirs": None}

    def ours() -> Tensor:
        hidden, after = model.states(words[:, :-1], State(past=state["ours"]))
        state["ours"] = each(after.past, Tensor.detach)
        told = model.head(hidden, words[:, 1:])
        return told.total / told.count

    def plain() -> Tensor:
        told, after = theirs(x, state["theirs"])
        state["theirs"] = tuple(t.detach() for t in after)
        return F.nll_loss(told, wanted)

    return {OURS: (model, ours), PLAIN: (theirs, plain)}


if __name__ == "__main__":
    main(sys.argv[1:])
