"""Training a translator: ours against Hugging Face Marian and torch.nn.Transformer, same shapes, same sentences.

    python -m bench.train_translation            # CPU, or the GPU where there is one
    python -m bench.train_translation --fill     # all engines side by side, to fill the compiler's cache beforehand
    python -m bench.train_translation --tiny     # anywhere: a small model, nothing is written, to see that it works

What is counted is real target tokens per second: padding is nobody's work. "default" batches are sentences in random
order, padded to the longest, as the peers' own examples do it; "bucketed" ones are Regard's in the peer's hands.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from bench.harness import report
from bench.peers import PAD, Plain, marian, ours, shape
from bench.step import Peaks, Step, product, race_tokens, rate
from regard.config import make_recipe, merge, read_toml
from regard.data.batch import Batch, pad
from regard.models import schema
from regard.prepare import prepare
from regard.recipes import find_recipe
from regard.tasks.rewrite import Rewrite

Feed = Iterator[tuple[Tensor, Tensor]]  # source, target
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Work:
    device: str
    backend: str | None  # of torch.compile
    size: str
    tokens: int  # of a batch
    rows: tuple[int, ...]  # sentences in a peer's own batch: it races with the one that suits it best
    steps: int  # of a round
    rounds: int
    warm: int  # rounds
    peers: tuple[str, ...] = ("Hugging Face", "torch.nn.Transformer")


GPU = Work("cuda", "inductor", "base", 16_384, (256,), 12, 8, 1, ("Hugging Face",))  # the other compiles for minutes
CPU = Work("cpu", None, "small", 4096, (32, 64, 128, 256), 2, 7, 1)
TINY = Work("cpu", "eager", "tiny", 512, (8,), 1, 2, 1)


def main(asked: Sequence[str]) -> None:
    work = TINY if "--tiny" in asked else GPU if torch.cuda.is_available() else CPU
    with TemporaryDirectory() as scratch:
        values = merge(read_toml(find_recipe("multi30k-en-de-cased")), {"train": {"tokens": work.tokens}})
        _, task = prepare(make_recipe(values, schema), Path(scratch))
        assert isinstance(task, Rewrite)
        made = engines(task, work, Path(scratch), work.rows[-1])
        if asked[:1] == ["--alone"]:
            step = made[asked[1]]()
            print(asked[1], [step() for _ in range(4)])
        elif "--fill" in asked:
            command = [sys.executable, "-m", "bench.train_translation", "--alone"]
            for process in [subprocess.Popen([*command, name]) for name in made]:
                process.wait()
        else:
            compare(task, work, Path(scratch))


def note(task: Rewrite, work: Work, peaks: Peaks) -> str:
    sizes = ", ".join(map(str, work.rows))
    how = "bf16 autocast, torch.compile on all sides, our steps recorded" if work.backend else "fp32, no compile"
    return (
        f"Transformer {work.size}, Multi30k en→de raw text, BPE of {task.tokenizers.target.size:,}, "
        f"{work.tokens:,} tokens a batch for us and for bucketed peers; default batches are of random order, each "
        f"peer's at the best size of {sizes} sentences; AdamW (fused), label smoothing, dropout 0.1, {how}.{peaks}"
    )


def engines(task: Rewrite, work: Work, folder: Path, rows: int) -> dict[str, Callable[[], Step]]:
    """How to make each engine; ours first. The peers' default batches hold `rows` sentences."""
    vocab = task.tokenizers.target.size
    makers = {"Hugging Face": _hugging_face, "torch.nn.Transformer": _plain}
    feeds: dict[str, Callable[[], Feed]] = {
        "default": lambda: default_batches(task, rows),
        "bucketed": lambda: bucketed_batches(task),
    }
    found = {
        "regard": lambda: product(ours(work.size, vocab), task, folder / "run", work.device, backend=work.backend)
    }  # fmt: skip
    for peer, kind in itertools.product(work.peers, feeds):
        found[f"{peer}, {kind} batches"] = lambda peer=peer, kind=kind: _engine(  # type: ignore[misc]
            makers[peer](work, vocab), feeds[kind](), work.device
        )
    return found


def compare(task: Rewrite, work: Work, folder: Path) -> None:
    """A short race is written down at once, so that a longer one that is cut off loses nothing."""
    peaks, racing = Peaks(), {}
    for name, make in engines(task, work, folder, work.rows[-1]).items():
        if len(work.rows) == 1 or not name.endswith("default batches"):
            racing[name] = peaks.warmed(name, make, len(task.batches))
            continue
        best = max(work.rows, key=lambda rows: rate(engines(task, work, folder, rows)[name]()))
        racing[f"{name} of {best}"] = engines(task, work, folder, best)[name]()
    for rounds in (2, work.rounds) if work is GPU else (work.rounds,):
        found = race_tokens(f"{work.size}, training", racing, work.steps, rounds=rounds, warm=work.warm)
        if work is TINY:
            print(found)
        else:
            title = f"Training against {' and '.join(work.peers)}"
            report("train_translation", title, note(task, work, peaks), [found])


def _engine(made: tuple[nn.Module, Loss], feed: Feed, device: str) -> Step:
    """The loop that a user of PyTorch writes."""
    model, loss_of = made
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> int:
        held = next(feed)
        tokens = int((held[1][:, 1:] != PAD).sum())
        source, target = (t.to(device, non_blocking=True) for t in held)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(source, target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return tokens

    return step


def _hugging_face(work: Work, vocab: int) -> tuple[nn.Module, Loss]:
    model = marian(ours(work.size, vocab)).to(work.device).train()
    body = model if work.backend is None else torch.compile(model, dynamic=True, backend=work.backend)

    def loss(source: Tensor, target: Tensor) -> Tensor:
        real = (source != PAD).long()
        logits = body(
            input_ids=source, attention_mask=real, decoder_input_ids=target[:, :-1], use_cache=False
        ).logits  # a cache is for decoding; its own trainer has none either
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1
        )

    return model, loss


def _plain(work: Work, vocab: int) -> tuple[nn.Module, Loss]:
    model = Plain(shape(work.size, vocab)).to(work.device).train()
    body = model if work.backend is None else torch.compile(model, dynamic=True, backend=work.backend)
    return model, lambda source, target: body(source, target[:, :-1], target[:, 1:])


def bucketed_batches(task: Rewrite) -> Feed:
    for step in itertools.count():
        batch: Batch = task.batch("train", step)
        yield batch.source, batch.target


def default_batches(task: Rewrite, rows: int) -> Feed:
    """Random order, padded to the longest of the batch."""
    store = task.batches.store
    dice = torch.Generator().manual_seed(0)
    while True:
        for some in torch.randperm(len(store), generator=dice).split(rows):
            pairs = [store.pair(int(i)) for i in some]
            yield pad([p[0].tolist() for p in pairs])[0], pad([p[1].tolist() for p in pairs])[0]


if __name__ == "__main__":
    main(sys.argv[1:])
