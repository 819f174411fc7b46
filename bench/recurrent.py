"""Training a recurrent translator with additive attention: ours against a plain PyTorch loop over the target's words.

    python -m bench.recurrent            # CPU, or the GPU where there is one
    python -m bench.recurrent bf16       # of the GPU's precisions, one alone
    python -m bench.recurrent --tiny     # anywhere: a small model, nothing is written, to see that it works

The loop comes twice: as the tutorials have it, with one matrix from [state; word; context] to all words, and with our
deep output and our weights, which computes the same loss. What is counted is real target tokens per second. "default"
batches are sentences in random order, padded to the longest; "bucketed" ones are Regard's in the peer's hands.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from bench.harness import Comparison, raced, refuse_others, report
from bench.peers import Loop, same_model, tutorial
from bench.step import Batches, Given, Peaks, Step, product, race_tokens, rate
from regard.config import make_recipe
from regard.data.batch import Batch
from regard.models import schema
from regard.models.seq2seq import Config, Seq2Seq
from regard.prepare import prepare
from regard.tasks.rewrite import Rewrite

Loss = Callable[[Batch], Tensor]
Engine = Callable[[], tuple[nn.Module, Loss]]

PEERS = {"tutorial loop": tutorial, "the same model as a loop": same_model}


@dataclass(frozen=True)
class Work:
    device: str
    precisions: tuple[str, ...]  # autocast copies cuDNN's weights at each call, so both are told
    size: str
    tokens: int  # of a batch
    rows: tuple[int, ...]  # sentences in a peer's own batch: the best races
    batches: int  # of ours, which come again
    steps: int  # of a round
    rounds: int


GPU = Work("cuda", ("bf16", "fp32"), "base", 16_384, (1024,), 12, 2, 7)
CPU = Work("cpu", ("fp32",), "small", 2048, (32, 128), 40, 1, 5)
TINY = Work("cpu", ("fp32",), "tiny", 512, (8,), 2, 1, 2)


def main(asked: Sequence[str]) -> None:
    work = TINY if "--tiny" in asked else GPU if torch.cuda.is_available() else CPU
    refuse_others(asked, ["--tiny", *work.precisions])
    values = {
        "system": "seq2seq",
        "data": {"train": ["multi30k/raw/train.de", "multi30k/raw/train.en"]},
        "tokens": {"kind": "bpe", "size": 8000},
        "task": {"smoothing": 0.0},
        "model": {"size": work.size, "decoder": "bahdanau", "score": "additive"},
        "train": {"tokens": work.tokens},
    }
    with TemporaryDirectory() as scratch:
        recipe, task = prepare(make_recipe(values, schema), Path(scratch))
        config = recipe.model
        assert isinstance(config, Config)
        assert isinstance(task, Rewrite)
        losses, found = births(config, task), list[Comparison]()
        wanted = [precision for precision in work.precisions if precision in asked] or work.precisions
        for precision in wanted:  # what has been raced is written down before the next race begins
            found.append(compare(config, task, work, precision, Path(scratch)))
            if work is TINY:
                print(found[-1])
                continue
            title = "Training a recurrent translator against a plain PyTorch loop"
            known = [_name(config, precision) for precision in work.precisions]
            report("recurrent", title, note(config, work, losses), found, known)


def note(config: Config, work: Work, losses: dict[str, float]) -> str:
    first, *others = map(str, work.rows)
    held = f"each peer's at the best size of {', '.join((first, *others))}" if others else f"of {first}"
    born = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    return (
        f"One GRU layer a side, {config.dim} wide (the encoder reads both ways), word vectors of {config.embedding}, "
        f"additive attention; Multi30k de→en raw text, BPE of {config.vocab:,}, {work.tokens:,} tokens a batch for us "
        f"and for bucketed peers, {work.batches} batches that come again; default batches are of random order, {held} "
        f"sentences; AdamW (fused), clipped, dropout {config.dropout}, no compile; on a GPU our steps are recorded. "
        f"Loss at birth (log V = {math.log(config.vocab or 1):.3f}): {born}."
    )


def births(config: Config, task: Rewrite) -> dict[str, float]:
    """What each engine loses before it has learnt anything: all about log V, and the same model the same."""
    batch = task.batch("train", 0)
    found = {}
    for name, engine in engines(config, task).items():
        model, loss = engine()
        model.eval()
        with torch.no_grad():
            found[name] = float(loss(batch))
    first, same = found["regard"], found["the same model as a loop"]
    assert math.isclose(first, same, rel_tol=1e-5), f"the same model loses {same}, ours {first}"
    assert all(math.isclose(loss, math.log(config.vocab or 1), abs_tol=0.3) for loss in found.values()), found
    return found


def engines(config: Config, task: Rewrite) -> dict[str, Engine]:
    """How to make each model with its loss; ours first."""
    return {
        "regard": lambda: ours(config, task),
        **{name: lambda make=make: plain(make(ours(config, task)[0])) for name, make in PEERS.items()},  # type: ignore[misc]
    }


def ours(config: Config, task: Rewrite) -> tuple[Seq2Seq, Loss]:
    torch.manual_seed(0)
    model = Seq2Seq(config)

    def loss_of(batch: Batch) -> Tensor:
        loss = task.loss(model, batch, None)
        return loss.total / loss.count

    return model, loss_of


def plain(model: Loop) -> tuple[nn.Module, Loss]:
    return model, lambda batch: model(batch.source, batch.target[:, :-1], batch.target[:, 1:])


def _name(config: Config, precision: str) -> str:
    return f"{config.dim} wide, {precision}"


def compare(config: Config, task: Rewrite, work: Work, precision: str, folder: Path) -> Comparison:
    made, peaks = engines(config, task), Peaks()
    some: Batches = [task.batch("train", step) for step in range(work.batches)]
    given = Given(some, lambda model, batch: task.cost(model, batch, None))

    def racer(name: str, feed: Iterator[Batch]) -> Step:
        return trainer(*made[name](), feed, work.device, precision)

    def ours_racing() -> Step:
        return product(ours(config, task)[0], given, folder / "run", work.device, precision=precision)

    racing = {"regard": peaks.warmed("regard", ours_racing, work.batches)}
    for name in PEERS:
        best = work.rows[0]
        if len(work.rows) > 1:
            best = max(work.rows, key=lambda rows: rate(racer(name, shuffled(task, rows))))
        for kind, feed in (
            (f"default batches of {best}", shuffled(task, best)),
            ("bucketed batches", itertools.cycle(some)),
        ):
            title = f"{name}, {kind}"
            racing[title] = peaks.warmed(title, lambda name=name, feed=feed: racer(name, feed), 2)  # type: ignore[misc]
    found = race_tokens(_name(config, precision), racing, work.steps, rounds=work.rounds, warm=1)
    found.peaks = peaks.bytes
    return found


def trainer(model: nn.Module, loss_of: Loss, feed: Iterator[Batch], device: str, precision: str) -> Step:
    """One update on the next batch; the same for all."""
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> int:
        batch = next(feed).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return batch.tokens

    return step


def shuffled(task: Rewrite, rows: int) -> Iterator[Batch]:
    """Random order, padded to the longest of the batch; all of them made beforehand, and then again and again."""
    store = task.batches.store
    order = torch.randperm(len(store), generator=torch.Generator().manual_seed(0))
    return itertools.cycle([Batch.padded(*store.gather(some.numpy())) for some in order.split(rows)])


if __name__ == "__main__":
    raced(main, sys.argv[1:])
