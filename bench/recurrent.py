"""Training a recurrent translator with additive attention: ours against a plain PyTorch loop over the target's words.

    python -m bench.recurrent    # CPU, or the GPU where there is one

The loop comes twice: as the tutorials have it, with one matrix from [state; word; context] to all words, and with our
deep output and our weights, which computes the same loss. What is counted is real target tokens per second. "default"
batches are sentences in random order, padded to the longest; "bucketed" ones are Regard's in the peer's hands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from bench.harness import Comparison, report
from bench.peers import Loop, same_model, tutorial
from bench.train_translation import Step, race_tokens, rate
from regard.config import make_recipe
from regard.data.batch import Batch
from regard.models import schema
from regard.models.seq2seq import Config, Seq2Seq
from regard.prepare import prepare
from regard.tasks.rewrite import Rewrite

Loss = Callable[[Batch], Tensor]
Engine = Callable[[], tuple[nn.Module, Loss]]

PRECISIONS = {"cpu": ("fp32",), "cuda": ("bf16", "fp32")}  # autocast copies cuDNN's weights at each call
SIZES = {"cpu": (32, 64, 128, 256), "cuda": (1024,)}  # sentences in a peer's own batch: the best races
PEERS = {"tutorial loop": tutorial, "the same model as a loop": same_model}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, tokens, steps = ("base", 16_384, 3) if device == "cuda" else ("small", 4096, 2)
    values = {
        "system": "seq2seq",
        "data": {"train": ["multi30k/raw/train.de", "multi30k/raw/train.en"]},
        "tokens": {"kind": "bpe", "size": 8000},
        "task": {"smoothing": 0.0},
        "model": {"size": size, "decoder": "bahdanau", "score": "additive"},
        "train": {"tokens": tokens},
    }
    with TemporaryDirectory() as scratch:
        recipe, task = prepare(make_recipe(values, schema), Path(scratch))
        config = recipe.model
        assert isinstance(config, Config)
        losses = births(config, task)
        found = [compare(config, task, steps, device, precision) for precision in PRECISIONS[device]]
    note = (
        f"One GRU layer a side, {config.dim} wide (the encoder reads both ways), word vectors of {config.embedding}, "
        f"additive attention; Multi30k de→en raw text, BPE of {config.vocab:,}, {tokens:,} tokens a batch for us and "
        f"for bucketed peers; default batches are of random order, each peer's at the best size of "
        f"{', '.join(map(str, SIZES[device]))} sentences; AdamW (fused), clipped, dropout {config.dropout}, "
        f"no compile. Loss at birth (log V = {math.log(config.vocab or 1):.3f}): "
        f"{', '.join(f'{name} {loss:.3f}' for name, loss in losses.items())}."
    )
    report("recurrent", "Training a recurrent translator against a plain PyTorch loop", note, found)


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


def compare(config: Config, task: Rewrite, steps: int, device: str, precision: str) -> Comparison:
    made = engines(config, task)

    def racer(name: str, feed: Iterator[Batch]) -> Step:
        return trainer(*made[name](), feed, device, precision)

    racing = {"regard": racer("regard", bucketed(task))}
    for name in PEERS:
        rates = {rows: rate(racer(name, shuffled(task, rows))) for rows in SIZES[device]}
        best = max(rates, key=lambda rows: rates[rows])
        racing[f"{name}, default batches of {best}"] = racer(name, shuffled(task, best))
        racing[f"{name}, bucketed batches"] = racer(name, bucketed(task))
    return race_tokens(f"{config.dim} wide, {precision}", racing, steps, device)


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


def bucketed(task: Rewrite) -> Iterator[Batch]:
    return (task.batch("train", step) for step in itertools.count())


def shuffled(task: Rewrite, rows: int) -> Iterator[Batch]:
    """Random order, padded to the longest of the batch."""
    store = task.batches.store
    dice = torch.Generator().manual_seed(0)
    while True:
        for some in torch.randperm(len(store), generator=dice).split(rows):
            yield Batch.padded(*store.gather(some.numpy()))


if __name__ == "__main__":
    main()
