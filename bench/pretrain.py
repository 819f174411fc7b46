"""Pre-training steps on a GPU: BERT-base and GPT-2 of 124 million parameters, ours against compiled Hugging Face.

    python -m bench.pretrain             # a GPU is wanted
    python -m bench.pretrain --tiny      # anywhere: small models, nothing is written, to see that it works

Both sides begin with the same weights, learn from the same batches and lose the same. BERT's batches are of WikiText-2,
at the lengths that its recipe makes: most sequences are full, a tenth are shorter. GPT-2's windows are always full, so
their tokens may be any.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bench.harness import Comparison, report
from bench.peers import hugging_face_bert, hugging_face_gpt2, our_bert, our_gpt2
from bench.train_translation import Step, race_tokens
from regard.config import make_recipe
from regard.data.stream import Excerpts
from regard.models import gpt, schema
from regard.prepare import prepare
from regard.tasks.masked import Masked, MaskedBatch
from regard.training.loop import compile_in_place

IGNORED = -100  # what Hugging Face's loss leaves out


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


TINY = Work(
    device="cpu", backend="eager", text="wikitext2/wiki.valid.tokens", bert="tiny", vocab=2000,
    gpt2={"vocab": 1000, "dim": 32, "heads": 2, "layers": 2, "context": 64}, tokens=1024, batches=3, steps=1,
)  # fmt: skip

Loss: TypeAlias = Callable[[Any], Tensor]
Engine: TypeAlias = Callable[[str | None], tuple[nn.Module, Loss]]  # compiled by a backend, or not at all


@dataclass(frozen=True)
class Contest:
    """Engines that learn the same; ours first."""

    name: str
    batches: list[Any]
    engines: dict[str, Engine]


def main(asked: Sequence[str]) -> None:
    tiny = list(asked) == ["--tiny"]
    if not (tiny or torch.cuda.is_available()):
        sys.exit("there is no GPU here, and a CPU would take hours; write --tiny to see that it works")
    with TemporaryDirectory() as scratch:
        if tiny:
            print(*compare(TINY, Path(scratch)), sep="\n")
        elif asked:
            fill_cache(Work(), *asked)
        else:
            report("pretrain", "Pre-training against compiled Hugging Face", note(Work()), compare(Work(), scratch))


def note(work: Work) -> str:
    return (
        f"Steps of {work.tokens:,} tokens: BERT-base with both losses on WikiText-2 in sequences of up to "
        f"{work.length}, GPT-2 of 124 million parameters in windows of 1,024. bf16 autocast, AdamW (fused), clipped, "
        "dropout 0.1. Ours is compiled block by block, with what stands between the head's products; Hugging Face's "
        "model with its loss as one graph. All batches have one shape. Equal weights, equal batches; the losses before "
        "the first step were checked to be the same. Hugging Face's BERT computes the logits of all positions, as its "
        "own class does."
    )


def compare(work: Work, folder: str | Path) -> list[Comparison]:
    contests = [bert(work, Path(folder)), gpt2(work)]
    for contest in contests:
        check(contest, work.device)
    if work.device == "cuda":  # compiling takes a minute for each: all at once beforehand, into the compiler's cache
        command = [sys.executable, "-m", "bench.pretrain", str(folder)]
        alone = [subprocess.Popen([*command, contest.name, name]) for contest in contests for name in contest.engines]
        for process in alone:
            process.wait()
    return [race_all(contest, work) for contest in contests]


def fill_cache(work: Work, folder: str, contest: str, name: str) -> None:
    """One engine alone."""
    chosen = bert(work, Path(folder)) if contest == "BERT" else gpt2(work)
    step = trainer(chosen, name, work)
    print(contest, name, [step() for _ in range(4)])


@torch.no_grad()
def check(contest: Contest, device: str) -> None:
    """Before the first step all lose the same."""
    found = {}
    for name, engine in contest.engines.items():
        model, loss_of = engine(None)
        model.to(device).eval()
        found[name] = float(loss_of(contest.batches[0]))
    first, *others = found.values()
    assert all(math.isclose(first, other, rel_tol=1e-4) for other in others), found


def race_all(contest: Contest, work: Work) -> Comparison:
    steps = {name: trainer(contest, name, work) for name in contest.engines}
    found = race_tokens(contest.name, steps, work.steps, work.device)
    found.unit = "real tokens/s"
    return found


def trainer(contest: Contest, name: str, work: Work) -> Step:
    """One update on the next batch; the same for all."""
    model, loss_of = contest.engines[name](work.backend)
    model.to(work.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    feed = itertools.cycle([(batch, tokens_of(batch)) for batch in contest.batches])

    def step() -> int:
        batch, tokens = next(feed)
        with torch.autocast(work.device, torch.bfloat16, enabled=work.device == "cuda"):
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return tokens

    return step


def tokens_of(batch: MaskedBatch | Excerpts) -> int:
    """That are read."""
    return int(batch.real.sum()) if isinstance(batch, MaskedBatch) else batch.tokens


# ---- BERT


def bert(work: Work, folder: Path) -> Contest:
    values = {
        "system": "bert",
        "data": {"train": [work.text], "longest": work.length},
        "tokens": {"kind": "wordpiece", "size": work.vocab, "lowercase": True},
        "task": {"name": "masked", "copies": 1},
        "train": {"tokens": work.tokens},
    }
    _, task = prepare(make_recipe(values, schema), folder)
    assert isinstance(task, Masked)

    def ours(backend: str | None) -> tuple[nn.Module, Loss]:
        model = our_bert(work.bert, work.vocab)
        if backend is not None:
            compile_in_place(model, backend)

        def loss_of(batch: MaskedBatch) -> Tensor:
            loss = task.loss(model, batch, None)
            return loss.total / loss.count

        return model, loss_of

    def theirs(backend: str | None) -> tuple[nn.Module, Loss]:
        model = hugging_face_bert(our_bert(work.bert, work.vocab))
        body = model if backend is None else torch.compile(model, backend=backend)

        def loss_of(batch: MaskedBatch) -> Tensor:
            wanted = torch.full_like(batch.shown, IGNORED)
            wanted.view(-1)[batch.at] = batch.words
            return body(
                input_ids=batch.shown, attention_mask=batch.real.long(), token_type_ids=batch.segments,
                labels=wanted, next_sentence_label=batch.random,
            ).loss  # fmt: skip

        return model, loss_of

    return Contest("BERT", masked_batches(task, work), {"regard": ours, "Hugging Face": theirs})


def masked_batches(task: Masked, work: Work) -> list[MaskedBatch]:
    """Of one shape, so that one static graph serves the peer; each part of the loss is a mean, as the peer has it."""
    shape = task.batch("train", 0).shown.shape
    drawn = (task.batch("train", step) for step in itertools.count())
    alike = (batch for batch in drawn if batch.shown.shape == shape)
    return [
        replace(batch, usual=batch.tokens / len(batch.ids)).to(work.device)
        for batch in itertools.islice(alike, work.batches)
    ]


# ---- GPT-2


def gpt2(work: Work) -> Contest:
    def ours(backend: str | None) -> tuple[nn.Module, Loss]:
        model = our_gpt2(**work.gpt2)
        if backend is not None:
            compile_in_place(model, backend)

        def loss_of(batch: Excerpts) -> Tensor:
            hidden, _ = model(None, None, batch.text[:, :-1])
            wanted = batch.text[:, 1:]
            loss = model.head(hidden, wanted, real=torch.ones_like(wanted, dtype=torch.bool))
            return loss.total / loss.count

        return model, loss_of

    def theirs(backend: str | None) -> tuple[nn.Module, Loss]:
        model = hugging_face_gpt2(our_gpt2(**work.gpt2))

        def loss_of(text: Tensor) -> Tensor:
            logits = model(input_ids=text[:, :-1], use_cache=False).logits  # a cache is for decoding
            return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

        body = loss_of if backend is None else torch.compile(loss_of, backend=backend)
        return model, lambda batch: body(batch.text)

    return Contest("GPT-2", windows(work), {"regard": ours, "Hugging Face": theirs})


def windows(work: Work) -> list[Excerpts]:
    config = gpt.Config(**{**gpt.SIZES["gpt2"], **work.gpt2})
    dice = torch.Generator().manual_seed(0)
    shape = (work.tokens // config.context, config.context + 1)
    texts = (torch.randint(config.vocab or 0, shape, generator=dice) for _ in range(work.batches))
    return [Excerpts(text, None, tuple(range(len(text)))).to(work.device) for text in texts]


if __name__ == "__main__":
    main(sys.argv[1:])
