"""Training a translator: ours against Hugging Face Marian and torch.nn.Transformer, same shapes, same sentences.

    python -m bench.train_translation    # CPU, or the GPU where there is one

What is counted is real target tokens per second: padding is nobody's work. "default" batches are sentences in random
order, padded to the longest, as the peers' own examples do it; "bucketed" ones are Regard's in the peer's hands.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from bench.harness import Comparison, clock, race, report
from bench.peers import PAD, Plain, marian, ours
from regard.config import make_recipe, merge, read_toml
from regard.data.batch import Batch, pad
from regard.models import schema
from regard.prepare import prepare
from regard.recipes import find_recipe
from regard.tasks.rewrite import Rewrite
from regard.training.loop import compile_in_place

Feed = Iterator[tuple[Tensor, Tensor]]  # source, target
Loss = Callable[[Tensor, Tensor], Tensor]


SIZES = (32, 64, 128, 256)  # sentences in a peer's own batch: it races with the one that suits it best


def main() -> None:
    cuda = torch.cuda.is_available()
    size, tokens, steps = ("base", 16_384, 12) if cuda else ("small", 4096, 2)
    with TemporaryDirectory() as scratch:
        values = merge(read_toml(find_recipe("multi30k-en-de-cased")), {"train": {"tokens": tokens}})
        _, task = prepare(make_recipe(values, schema), Path(scratch))
        if sys.argv[1:]:  # one engine alone, to fill the compiler's cache
            step = engines(task, size, "cuda" if cuda else "cpu", SIZES[-1])[sys.argv[1]]()
            print(sys.argv[1], [step() for _ in range(4)])
            return
        found = compare(task, size, steps, "cuda" if cuda else "cpu")
    note = (
        f"Transformer {size}, Multi30k en→de raw text, BPE of {task.tokenizers.target.size:,}, "
        f"{tokens:,} tokens a batch for us and for bucketed peers; default batches are of random order, each peer's "
        f"at the best size of {', '.join(map(str, SIZES[-1:] if cuda else SIZES))} sentences; "
        "AdamW (fused), label smoothing, dropout 0.1, "
        f"{'bf16 autocast, torch.compile on all sides' if cuda else 'fp32, no compile'}."
    )
    peers = "Hugging Face Marian" if cuda else "Hugging Face Marian and torch.nn.Transformer"
    report("train_translation", f"Training against {peers}", note, [found])


Step = Callable[[], int]


def engines(task: Rewrite, size: str, device: str, rows: int) -> dict[str, Callable[[], Step]]:
    """How to make each engine; ours first. The peers' default batches hold `rows` sentences."""
    vocab = task.tokenizers.target.size
    return {
        "regard": lambda: _regard(task, ours(size, vocab), device),
        "Hugging Face, default batches": lambda: _engine(
            _hugging_face(size, vocab, device), default_batches(task, rows)
        ),
        "Hugging Face, bucketed batches": lambda: _engine(_hugging_face(size, vocab, device), bucketed_batches(task)),
        "torch.nn.Transformer, default batches": lambda: _engine(
            _plain(size, vocab, device), default_batches(task, rows)
        ),
        "torch.nn.Transformer, bucketed batches": lambda: _engine(_plain(size, vocab, device), bucketed_batches(task)),
    }


def compare(task: Rewrite, size: str, steps: int, device: str) -> Comparison:
    made = engines(task, size, device, SIZES[-1])
    if device == "cuda":  # compiling takes a minute for each: all at once beforehand, into the compiler's cache
        made = {name: make for name, make in made.items() if not name.startswith("torch.nn")}  # three minutes and more
        alone = [subprocess.Popen([sys.executable, "-m", "bench.train_translation", name]) for name in made]
        for process in alone:
            process.wait()
        return race_tokens(f"{size}, training", {name: make() for name, make in made.items()}, steps, device)
    racing = {}
    for name, make in made.items():
        if not name.endswith("default batches"):
            racing[name] = make()
            continue
        best = max(SIZES, key=lambda rows: rate(engines(task, size, device, rows)[name]()))
        racing[f"{name} of {best}"] = engines(task, size, device, best)[name]()
    return race_tokens(f"{size}, training", racing, steps, device)


def rate(step: Step, least: float = 4.0) -> float:
    """Tokens a second, after a warm-up."""
    step()
    tokens, before = 0, clock()
    while clock() - before < least:
        tokens += step()
    return tokens / (clock() - before)


def race_tokens(name: str, engines: dict[str, Step], steps: int, device: str) -> Comparison:
    """Batches differ in size, so every engine's tokens are summed over all rounds."""
    done: dict[str, list[int]] = {engine: [] for engine in engines}

    def run(engine: str) -> float:
        done[engine].append(sum(engines[engine]() for _ in range(steps)))
        return 1.0

    warm, rounds = (6, 10) if device == "cuda" else (1, 7)
    found = race(name, "real target tokens/s", {e: lambda e=e: run(e) for e in engines}, rounds=rounds, warm=warm)  # type: ignore[misc]
    for engine in engines:
        tokens = done[engine][-rounds:]
        mean = sum(tokens) / rounds
        found.work[engine] = mean
        found.seconds[engine] = [s * mean / t for s, t in zip(found.seconds[engine], tokens, strict=True)]
    return found


def _regard(task: Rewrite, model: nn.Module, device: str) -> Step:
    model.to(device).train()
    if device == "cuda":
        compile_in_place(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    count = itertools.count()

    def step() -> int:
        batch = task.batch("train", next(count)).to(torch.device(device))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = task.loss(model, batch, None)
        (loss.total / loss.count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return batch.tokens

    return step


def _engine(made: tuple[nn.Module, Loss, str], feed: Feed) -> Step:
    """The loop that a user of PyTorch writes."""
    model, loss_of, device = made
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> int:
        source, target = (t.to(device, non_blocking=True) for t in next(feed))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(source, target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return int((target[:, 1:] != PAD).sum())

    return step


def _hugging_face(size: str, vocab: int, device: str) -> tuple[nn.Module, Loss, str]:
    model = marian(ours(size, vocab)).to(device).train()
    body = torch.compile(model, dynamic=True) if device == "cuda" else model

    def loss(source: Tensor, target: Tensor) -> Tensor:
        real = (source != PAD).long()
        logits = body(
            input_ids=source, attention_mask=real, decoder_input_ids=target[:, :-1], use_cache=False
        ).logits  # a cache is for decoding; its own trainer has none either
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1
        )

    return model, loss, device


def _plain(size: str, vocab: int, device: str) -> tuple[nn.Module, Loss, str]:
    model = Plain(size, vocab).to(device).train()
    body = torch.compile(model, dynamic=True) if device == "cuda" else model
    return model, lambda source, target: body(source, target[:, :-1], target[:, 1:]), device


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
    main()
