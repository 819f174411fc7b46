"""Pre-training steps on a GPU: BERT-base and GPT-2 of 124 million parameters, ours against compiled Hugging Face.

    python -m bench.pretrain             # a GPU is wanted
    python -m bench.pretrain gpt2        # some of bert, spread and gpt2
    python -m bench.pretrain --fill      # all engines side by side, to fill the compiler's cache beforehand
    python -m bench.pretrain --tiny      # anywhere: small models, nothing is written, to see that it works

Both sides begin with the same weights and lose the same. BERT reads WikiText-2 twice: in full sequences, as its recipe
makes them, where most are of one length; and in pairs of segments of any length. There the peer's default batches are
in random order, padded to the longest; "bucketed" ones are ours in its hands. GPT-2's windows are always full, so their
tokens may be any. Our side is the step of the product, which is recorded; its batches come from the host each time.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bench.harness import Comparison, raced, refuse_others, report
from bench.peers import hugging_face_bert, hugging_face_gpt2, our_bert, our_gpt2
from bench.step import Batches, Given, Peaks, Step, product, race_tokens, read
from regard.config import make_recipe
from regard.core.head import Loss
from regard.data.forms import lengthen
from regard.data.stream import Excerpts
from regard.models import gpt, schema
from regard.prepare import prepare
from regard.tasks.masked import Masked, MaskedBatch, hide

IGNORED = -100  # what Hugging Face's loss leaves out
NAMES = ("GPT-2", "BERT", "BERT, any lengths")


@dataclass(frozen=True)
class Work:
    device: str = "cuda"
    backend: str = "inductor"  # of torch.compile
    text: str = "wikitext2/wiki.train.tokens"
    bert: str = "base"
    vocab: int = 30_522
    length: int = 128  # BERT's sequences for nine tenths of its training
    gpt2: dict[str, int] = field(default_factory=dict)
    tokens: int = 32_768  # of a batch
    batches: int = 16
    steps: int = 4  # of a round
    rounds: int = 10


TINY = Work(
    device="cpu", backend="eager", text="wikitext2/wiki.valid.tokens", bert="tiny", vocab=2000,
    gpt2={"vocab": 1000, "dim": 32, "heads": 2, "layers": 2, "context": 64},
    tokens=1024, batches=3, steps=1, rounds=2,
)  # fmt: skip

Learner: TypeAlias = tuple[nn.Module, Callable[[Any], Tensor]]  # a model, and the mean loss of a batch
Update: TypeAlias = Callable[[Any], None]  # by one batch


@dataclass(frozen=True)
class Contest:
    """Engines that learn the same: our model by its task, and the peer by its own loss, from one or two feeds."""

    name: str
    ours: Callable[[], nn.Module]
    task: Given
    theirs: Callable[[str | None], Learner]  # compiled by a backend, or not at all
    feeds: dict[str, Batches]  # of the peer

    def engines(self, work: Work, folder: Path) -> dict[str, Callable[[], Step]]:
        def regard() -> Step:
            return product(
                self.ours(),
                self.task,
                folder / "run",
                work.device,
                backend=work.backend,
                tokens_of=lambda batch: self.task.read[batch.ids],
            )

        @cache  # compiled once, whatever it is fed
        def update() -> Update:
            return updating(self.theirs(work.backend), work.device)

        peers = {
            name: lambda some=some: trainer(update(), some, work.device)  # type: ignore[misc]
            for name, some in self.feeds.items()
        }
        return {"regard": regard, **peers}


def main(asked: Sequence[str]) -> None:
    tiny = "--tiny" in asked
    if asked[:1] != ["--alone"]:
        refuse_others(asked, [*RACES, "--fill", "--tiny"])
    if not (tiny or torch.cuda.is_available()):
        sys.exit("there is no GPU here, and a CPU would take hours; write --tiny to see that it works")
    work = TINY if tiny else Work()
    with TemporaryDirectory() as scratch:
        folder = Path(asked[1]) if asked[:1] == ["--alone"] else Path(scratch)
        names = [name for name in RACES if name in asked] or [*RACES]
        contests = {name: RACES[name](work, folder) for name in names}
        if asked[:1] == ["--alone"]:
            step = contests[asked[2]].engines(work, Path(scratch))[asked[3]]()
            print(*asked[2:4], [step() for _ in range(4)])
        elif "--fill" in asked:
            command = [sys.executable, "-m", "bench.pretrain", "--alone", scratch]
            each = [(key, name) for key, contest in contests.items() for name in ("regard", *contest.feeds)]
            for process in [subprocess.Popen([*command, *names, *asked]) for names in each]:
                process.wait()
        else:
            compare([*contests.values()], work, folder)


def note(work: Work) -> str:
    return (
        f"Steps of {work.tokens:,} tokens: BERT-base with both losses on WikiText-2 in sequences of up to "
        f"{work.length}, GPT-2 of 124 million parameters in windows of 1,024. bf16 autocast, AdamW (fused), clipped, "
        "dropout 0.1. Ours is compiled block by block, with what stands between the head's products, and recorded; "
        "Hugging Face's model with its loss as one graph, of any lengths where they differ. Equal weights; the losses "
        "before the first step were checked to be the same. Hugging Face's BERT computes the logits of all positions, "
        "as its own class does."
    )


def compare(contests: Sequence[Contest], work: Work, folder: Path) -> None:
    """What has been raced is written down before the next race begins."""
    found: list[Comparison] = []
    for contest in contests:
        check(contest, work.device)
        peak = Peaks()
        made = contest.engines(work, folder)
        racing = {name: peak.warmed(name, make, work.batches) for name, make in made.items()}
        found.append(
            race_tokens(contest.name, racing, work.steps, rounds=work.rounds, warm=1, unit="real tokens/s")
        )  # fmt: skip
        found[-1].peaks = peak.bytes
        if work is TINY:
            print(found[-1])
        else:
            report("pretrain", "Pre-training against compiled Hugging Face", note(work), found, known=NAMES)


@torch.no_grad()
def check(contest: Contest, device: str) -> None:
    """Before the first step all lose the same."""
    batch = contest.task.batch("train", 0).to(device)
    model = contest.ours().to(device).eval()
    loss = contest.task.loss(model, batch, None)
    other, mean = contest.theirs(None)
    other.to(device).eval()
    ours, theirs = float(loss.total) / loss.count, float(mean(batch))
    assert math.isclose(ours, theirs, rel_tol=1e-4), (contest.name, ours, theirs)


def trainer(update: Update, batches: Batches, device: str) -> Step:
    """The peer's update on its next batch, which lies on the device already."""
    feed = itertools.cycle([(batch.to(device), read(batch)) for batch in batches])

    def step() -> int:
        batch, tokens = next(feed)
        update(batch)
        return tokens

    return step


def updating(made: Learner, device: str) -> Update:
    model, loss_of = made
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def update(batch: Any) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


# ---- BERT


def bert(work: Work, folder: Path) -> Contest:
    """Of one shape, so that one static graph serves the peer."""
    task = masked(work, folder, short=0.1)
    drawn = [task.batch("train", step) for step in range(4 * work.batches)]
    shape, _ = Counter(batch.shown.shape for batch in drawn).most_common(1)[0]
    some = taken((batch for batch in drawn if batch.shown.shape == shape), work.batches)
    return bert_contest(NAMES[1], task, work, some, {"Hugging Face": some}, dynamic=False)


def spread_bert(work: Work, folder: Path) -> Contest:
    """Of any lengths."""
    task = masked(work, folder, short=1.0)
    some = taken((task.batch("train", step) for step in itertools.count()), work.batches)
    feeds = {
        "Hugging Face, default batches": taken(in_random_order(task, work), work.batches),
        "Hugging Face, bucketed batches": [in_eights(batch) for batch in some],
    }
    return bert_contest(NAMES[2], task, work, some, feeds, dynamic=True)


def bert_contest(
    name: str, task: Masked, work: Work, some: Batches, feeds: dict[str, Batches], *, dynamic: bool
) -> Contest:
    def theirs(backend: str | None) -> Learner:
        model = hugging_face_bert(our_bert(work.bert, work.vocab))
        body = model if backend is None else torch.compile(model, backend=backend, dynamic=dynamic)

        def loss_of(batch: MaskedBatch) -> Tensor:
            wanted = torch.full_like(batch.shown, IGNORED)
            wanted.view(-1)[batch.at] = batch.words
            return body(
                input_ids=batch.shown, attention_mask=batch.real.long(), token_type_ids=batch.segments,
                labels=wanted, next_sentence_label=batch.random,
            ).loss  # fmt: skip

        return model, loss_of

    def cost(model: nn.Module, batch: MaskedBatch) -> Loss:
        return task.cost(model, batch, None)

    return Contest(name, lambda: our_bert(work.bert, work.vocab), Given(some, cost), theirs, feeds)


def masked(work: Work, folder: Path, *, short: float) -> Masked:
    values = {
        "system": "bert",
        "data": {"train": [work.text], "longest": work.length},
        "tokens": {"kind": "wordpiece", "size": work.vocab, "lowercase": True},
        "task": {"name": "masked", "copies": 1, "short": short},
        "train": {"tokens": work.tokens},
    }
    _, task = prepare(make_recipe(values, schema), folder)
    assert isinstance(task, Masked)
    return task


def in_random_order(task: Masked, work: Work) -> Iterator[MaskedBatch]:
    """As many sequences as a batch of the longest would hold, whatever their lengths."""
    dice = torch.Generator().manual_seed(0)
    places = torch.randperm(len(task.long.lengths(0)), generator=dice).split(work.tokens // work.length)
    for number, some in enumerate(itertools.cycle(places)):
        found = task.long.gather(0, some.numpy(), task.tokenizer.marks)
        yield hide(found, task.masking, some.numpy(), str(number))


def in_eights(batch: MaskedBatch) -> MaskedBatch:
    """As long as a multiple of eight, which its own collator offers: quicker for it, and one graph serves all."""
    before = batch.shown.shape[1]
    length = -(-before // 8) * 8
    shown, real, segments = (lengthen(t, length) for t in (batch.shown, batch.real, batch.segments))
    return replace(batch, shown=shown, real=real, segments=segments, at=batch.at // before * length + batch.at % before)


def taken(batches: Iterable[MaskedBatch], count: int) -> Batches:
    """Each part of the loss is a mean, as the peer has it."""
    usual = (replace(batch, usual=batch.tokens / len(batch.ids)) for batch in batches)
    return list(itertools.islice(usual, count))


# ---- GPT-2


def gpt2(work: Work, _: Path) -> Contest:
    def theirs(backend: str | None) -> Learner:
        model = hugging_face_gpt2(our_gpt2(**work.gpt2))

        def loss_of(text: Tensor) -> Tensor:
            logits = model(input_ids=text[:, :-1], use_cache=False).logits  # a cache is for decoding
            return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

        body = loss_of if backend is None else torch.compile(loss_of, backend=backend)
        return model, lambda batch: body(batch.text)

    def cost(model: nn.Module, batch: Excerpts) -> Loss:
        hidden, _ = model(None, None, batch.text[:, :-1])
        loss: Loss = model.head(hidden, batch.wanted)  # type: ignore[operator]
        return loss

    some = windows(work)
    return Contest(NAMES[0], lambda: our_gpt2(**work.gpt2), Given(some, cost), theirs, {"Hugging Face": some})


def windows(work: Work) -> Batches:
    config = gpt.Config(**{**gpt.SIZES["gpt2"], **work.gpt2})
    dice = torch.Generator().manual_seed(0)
    shape = (work.tokens // config.context, config.context + 1)
    texts = (torch.randint(config.vocab or 0, shape, generator=dice) for _ in range(work.batches))
    return [Excerpts(text, None, tuple(range(len(text)))) for text in texts]


RACES = {"gpt2": gpt2, "spread": spread_bert, "bert": bert}


if __name__ == "__main__":
    raced(main, sys.argv[1:])
