"""Training a translator: ours against Hugging Face Marian and torch.nn.Transformer, same shapes, same sentences.

    python -m bench.train_translation            # CPU, or the GPU where there is one
    python -m bench.train_translation one-shape  # on a GPU: the peer that is compiled soonest, and no other
    python -m bench.train_translation large      # on a GPU: batches of four times as many tokens, ours in its hands
    python -m bench.train_translation --fill     # all engines side by side, to fill the compiler's cache beforehand
    python -m bench.train_translation --tiny     # anywhere: a small model, nothing is written, to see that it works

What is counted is real target tokens per second: padding is nobody's work. "default" batches are sentences in random
order, padded to the longest, as the peers' own examples do it; "bucketed" ones are Regard's in the peer's hands. On a
CPU each engine has a process of its own (bench/apart.py); on a GPU they share one, and what each holds is told. Where
peers are compiled, they are so for any shape, and once more for one shape alone, to which everything is padded: more
padding, and nothing left to be asked at each step; on a GPU that one is recorded, too.
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from bench.apart import running
from bench.harness import len_cores, raced, refuse_others, report
from bench.peers import PAD, SMOOTHING, Plain, marian, ours, shape
from bench.step import Peaks, Step, product, race_tokens, rate
from regard.config import make_recipe, merge, read_toml
from regard.data.batch import Batch, pad
from regard.data.forms import lengthen
from regard.models import schema
from regard.prepare import prepare
from regard.recipes import find_recipe
from regard.tasks.rewrite import Rewrite
from regard.training.compiled import GRAPHS

Feed = Iterator[tuple[Tensor, Tensor]]  # source, target
Loss = Callable[[Tensor, Tensor], Tensor]
Learn = Callable[[Feed], int]  # one update on the next batch; how many real tokens it learnt from
Makers = dict[str, Callable[[], Step]]

HUGGING_FACE, PLAIN = "Hugging Face", "torch.nn.Transformer"
TURNS = 3  # in which a peer's batches of several sizes are tried
PATIENCE = 55.0  # seconds: default batches differ much, and few rounds of them say little
OURS, FOR_ONE, ONE_SHAPE = "regard", "for one shape", "one-shape"
BUCKETED, LARGE, TIMES = "bucketed batches", "large", 4
ALONE = "--alone"  # by which --fill calls itself, with an engine's name
PARTS = {ONE_SHAPE: FOR_ONE, LARGE: BUCKETED}  # words that are asked for, and who is raced then


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
    peers: tuple[str, ...] = (HUGGING_FACE, PLAIN)
    least: int = 0  # tokens of a round
    trial: float = 1.0  # seconds that batches of a size are tried in a turn
    ready: float = 4.0  # seconds of steps, before engines in processes of their own race


GPU = Work("cuda", "inductor", "base", 16_384, (256, 1024, 2048), 12, 8, 1, (HUGGING_FACE,))  # note() says why no other
CPU = Work("cpu", None, "small", 4096, (16, 32, 64), 1, 8, 1, least=3000)
TINY = Work("cpu", "eager", "tiny", 512, (4, 8), 1, 2, 1, trial=0.01, ready=0.01)


def main(asked: Sequence[str]) -> None:
    if asked[:1] != [ALONE]:
        refuse_others(asked, [*PARTS, "--fill", "--tiny"])
    work = TINY if "--tiny" in asked else GPU if torch.cuda.is_available() else CPU
    if LARGE in asked:
        work = replace(work, tokens=TIMES * work.tokens)
    with TemporaryDirectory() as scratch:
        task = prepared(work, Path(scratch))
        if asked[:1] == [ALONE]:
            made, name = engines(task, work, Path(scratch), {}), " ".join(asked[1:2]) or "no engine"
            refuse_others([name], [*made])
            step = made[name]()
            some = len(task.batches) if name == OURS else 4  # ours are compiled for few shapes, and meet them all
            print(name, sum(step() for _ in range(some)))
        elif "--fill" in asked:
            command = [sys.executable, "-m", "bench.train_translation", ALONE]
            made = racing(engines(task, work, Path(scratch), {}), asked)
            once = [name for name in made if BUCKETED not in name]  # others are compiled as default ones are
            names = [*made] if LARGE in asked else once
            for process in [subprocess.Popen([*command, name, *asked]) for name in names]:
                process.wait()
        elif work.device == "cuda":
            agree(task, work)
            peaks, chosen = Peaks(), dict[str, int]()
            made = racing(engines(task, work, Path(scratch), chosen), asked)
            steps = {name: peaks.warmed(name, make, len(task.batches)) for name, make in made.items()}
            compare(task, work, steps, chosen, asked, peaks)
        else:
            agree(task, work)
            names = [*racing(engines(task, work, Path(scratch), {}), asked)]
            with running({name: (alone, len_cores(), work, Path(scratch), name) for name in names}) as steps:
                chosen = {name: steps[name]("size") for name in names}  # one is made after another, undisturbed
                sizes = {peer: chosen[default_of(peer)] for peer in work.peers if default_of(peer) in chosen}
                compare(task, work, steps, sizes, asked)


def prepared(work: Work, folder: Path) -> Rewrite:
    values = merge(
        read_toml(find_recipe("multi30k-en-de-cased")),
        {"train": {"tokens": work.tokens}, "task": {"smoothing": SMOOTHING}},
    )
    _, task = prepare(make_recipe(values, schema), folder)
    assert isinstance(task, Rewrite)
    return task


@torch.no_grad()
def agree(task: Rewrite, work: Work) -> None:
    """With equal weights, Hugging Face loses as much as we do."""
    mine = ours(work.size, task.tokenizers.target.size)
    twin = marian(mine).to(work.device).eval()
    mine, batch = mine.to(work.device).eval(), task.batch("train", 0).to(work.device)
    loss, theirs = task.loss(mine, batch, None), float(_marian_loss(twin)(batch.source, batch.target))
    found = float(loss.total) / loss.count
    assert math.isclose(found, theirs, rel_tol=1e-4), (found, theirs)


def alone(_: int, work: Work, folder: Path, name: str) -> Callable[..., int]:
    """An engine in a process of its own, made when it is first asked: for its default batches' size, or to learn. Its
    first steps ask for memory, and are slow."""
    chosen: dict[str, int] = {}
    step = cache(lambda: engines(prepared(work, folder), work, folder, chosen)[name]())

    def run(asked: str = "") -> int:
        learn = step()
        if asked == "size":
            rate(learn, work.ready)
        return next(iter(chosen.values()), 0) if asked == "size" else learn()

    return run


def default_of(peer: str) -> str:
    return f"{peer}, default batches"


def racing(made: Makers, asked: Sequence[str]) -> Makers:
    parts = [PARTS[word] for word in asked if word in PARTS] or [""]
    return {name: make for name, make in made.items() if name == OURS or any(part in name for part in parts)}


def note(task: Rewrite, work: Work) -> str:
    """Of all races in the table, whichever was the last."""
    sizes = ", ".join(map(str, work.rows))
    absent = "" if PLAIN in work.peers else f" {PLAIN} is not raced here: torch.compile takes minutes for it."
    how = "bf16 autocast, torch.compile on all sides, our steps recorded" if work.backend else "fp32, no compile"
    shape = "×".join(map(str, (work.rows[-1], *longest(task))))
    fixed = f" Batches of one shape: sentences, source and target tokens {shape}." if work.backend else ""
    large = f" Large batches: {TIMES} times as many tokens." if work.backend else ""
    return (
        f"Transformer {work.size}, Multi30k en→de raw text, BPE of {task.tokenizers.target.size:,}, "
        f"{work.tokens:,} tokens a batch for us and for bucketed peers; default batches are of random order and "
        f"hold as many sentences as suit a peer best ({sizes} were tried; in brackets); AdamW (fused), label "
        f"smoothing of {SMOOTHING}, dropout 0.1, {how}.{fixed}{large}{absent}"
    )


def engines(task: Rewrite, work: Work, folder: Path, chosen: dict[str, int]) -> Makers:
    """How to make each engine; ours first. Once a peer is made, `chosen` has the size of its default batches."""
    vocab = task.tokenizers.target.size
    torch._dynamo.config.recompile_limit = GRAPHS  # for peers as for us: with fewer, some of their layers would not be

    @cache  # compiled once, whatever it is fed
    def learner(peer: str) -> Learn:
        return _learner(*MAKERS[peer](work, vocab), work.device)

    def regard() -> Step:
        return product(ours(work.size, vocab), task, folder / "run", work.device, backend=work.backend)

    def default(peer: str) -> Step:
        learn = learner(peer)
        feeds = {rows: drawn(default_batches(task, rows), task, rows) for rows in work.rows}
        chosen[peer] = _quickest(learn, feeds, work.steps, work.trial)
        return partial(learn, feeds[chosen[peer]])

    def bucketed(peer: str) -> Step:
        return partial(learner(peer), itertools.cycle(list(bucketed_batches(task))))

    def of_one_shape(peer: str, mode: str | None = None) -> Step:
        learn = _learner(*MAKERS[peer](work, vocab, any_shape=False, mode=mode), work.device)
        rows = work.rows[-1]
        return partial(learn, drawn(default_batches(task, rows, to=longest(task)), task, rows))

    found: Makers = {OURS: regard}
    for peer in work.peers:
        found[default_of(peer)] = partial(default, peer)
        found[f"{peer}, {BUCKETED}"] = partial(bucketed, peer)
        if work.backend is not None:
            found[f"{peer} {FOR_ONE}"] = partial(of_one_shape, peer)
        if work.device == "cuda":
            found[f"{peer} {FOR_ONE}, recorded"] = partial(of_one_shape, peer, "reduce-overhead")
    return found


def compare(
    task: Rewrite,
    work: Work,
    steps: Mapping[str, Step],
    chosen: dict[str, int],
    asked: Sequence[str],
    peaks: Peaks | None = None,
) -> None:
    """A short race is written down at once, so that a longer one that is cut off loses nothing."""
    told, names = note(task, GPU if work.device == "cuda" else work), {"": f"{work.size}, training"}
    names |= {ONE_SHAPE: f"{names['']}, {ONE_SHAPE} alone", LARGE: f"{names['']}, {LARGE} batches"}
    part = next((word for word in asked if word in PARTS), "")
    for rounds in (2, work.rounds) if work.device == "cuda" else (work.rounds,):
        found = race_tokens(
            names[part], steps, work.steps, rounds=rounds, warm=work.warm, least=work.least, patience=PATIENCE
        )
        found.chosen = {default_of(peer): f"{rows} sentences" for peer, rows in chosen.items()}
        found.peaks = {} if peaks is None else peaks.bytes
        if work.size == TINY.size:
            print(told, found, sep="\n")
        else:
            title = f"Training against {' and '.join(work.peers)}"
            report("train_translation", title, told, [found], [*names.values()])


def _quickest(learn: Learn, feeds: dict[int, Feed], warm: int, least: float) -> int:
    """The size whose batches give most tokens a second, by the median of some turns: machines have slow moments. One
    model learns from all, so that it is compiled once."""
    if len(feeds) == 1:
        return next(iter(feeds))
    found: dict[int, list[float]] = {rows: [] for rows in feeds}
    for turn in range(TURNS):
        for rows, feed in feeds.items():
            found[rows].append(rate(partial(learn, feed), least, warm=0 if turn else warm))
    return max(found, key=lambda rows: statistics.median(found[rows]))


def _learner(model: nn.Module, loss_of: Loss, device: str) -> Learn:
    """The loop that a user of PyTorch writes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def learn(feed: Feed) -> int:
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

    return learn


def _hugging_face(
    work: Work, vocab: int, any_shape: bool = True, mode: str | None = None
) -> tuple[nn.Module, Loss]:  # fmt: skip
    model = marian(ours(work.size, vocab)).to(work.device).train()
    loss = _marian_loss(model)
    if work.backend is None:
        return model, loss
    return model, torch.compile(loss, dynamic=any_shape, backend=work.backend, mode=mode)


def _marian_loss(model: nn.Module) -> Loss:
    def loss(source: Tensor, target: Tensor) -> Tensor:
        real = (source != PAD).long()
        logits = model(
            input_ids=source, attention_mask=real, decoder_input_ids=target[:, :-1], use_cache=False
        ).logits  # a cache is for decoding; its own trainer has none either
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
        )

    return loss


def _plain(work: Work, vocab: int, any_shape: bool = True, mode: str | None = None) -> tuple[nn.Module, Loss]:
    model = Plain(shape(work.size, vocab)).to(work.device).train()
    body = model if work.backend is None else torch.compile(model, dynamic=any_shape, backend=work.backend, mode=mode)
    return model, lambda source, target: body(source, target[:, :-1], target[:, 1:])


MAKERS = {HUGGING_FACE: _hugging_face, PLAIN: _plain}


def bucketed_batches(task: Rewrite) -> Feed:
    for step in range(len(task.batches)):
        batch: Batch = task.batch("train", step)
        yield batch.source, batch.target


def drawn(feed: Feed, task: Rewrite, rows: int) -> Feed:
    """As many as the data holds, made beforehand: ours are made while the step before is at work."""
    return itertools.cycle(list(itertools.islice(feed, max(1, len(task.batches.store) // rows))))


def longest(task: Rewrite) -> tuple[int, int]:
    """Source and target."""
    buckets = task.batches.store.buckets
    return max(bucket.source for bucket in buckets), max(bucket.target for bucket in buckets)


def default_batches(task: Rewrite, rows: int, to: tuple[int, int] | None = None) -> Feed:
    """Random order, padded to the longest of the batch, or to a given length; then all batches are full."""
    store = task.batches.store
    dice = torch.Generator().manual_seed(0)
    while True:
        for some in torch.randperm(len(store), generator=dice).split(rows):
            if to is not None and len(some) < rows:
                continue
            pairs = [store.pair(int(i)) for i in some]
            source, target = (pad([side.tolist() for side in sides])[0] for sides in zip(*pairs, strict=True))
            if to is not None:
                source, target = lengthen(source, to[0]), lengthen(target, to[1])
            yield source, target


if __name__ == "__main__":
    raced(main, sys.argv[1:])
