"""Text in, other text out: translation, and whatever else reads one sequence and writes another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from tokenizers.models import WordLevel
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.autoregressive import Autoregressive
from regard.core.head import Loss
from regard.core.spans import SteadySpans, has_kernel
from regard.core.watch import watch
from regard.data.batch import Batch, Batches, in_order, pad
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer, Tokenizers
from regard.decode import Coverage, Hypothesis
from regard.decode.record import Record
from regard.errors import ConfigError, DataError
from regard.metrics import Measure
from regard.metrics.translation import BLEU, bleu, chrf, exact_match, perplexity
from regard.tasks import Steady
from regard.tasks.forcing import chance_of_truth, coins
from regard.tasks.reinforce import with_choices
from regard.tasks.searching import room, search

Progress = Callable[[int, int], None]  # done, of how many

MEASURES = ("loss", "perplexity", "bleu", "chrf", "exact")
NOTHING = Hypothesis(tokens=(), score=0.0, logprob=0.0, finished=True, rows=())
SHOWN = 32  # tokens of a side that are looked at with ease


@dataclass(frozen=True)
class Answer:
    """What came out for one input: the best first."""

    source: str
    texts: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]


@dataclass(frozen=True)
class Look:
    """Where an attention looked while an answer was written: a row for each of its tokens, a column for each read."""

    text: str
    answer: str
    name: str
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]  # the mean of its heads


@dataclass(frozen=True)
class Held:
    """A held-out split: its tokens for the loss, its text for the metrics."""

    store: Store
    sources: list[str]
    references: list[str]  # as a reader would write them


class Rewrite(Steady):
    """The task: teacher-forced cross-entropy in training, decoding and corpus metrics in evaluation."""

    def __init__(
        self,
        tokenizers: Tokenizers,
        train: Store,
        held: dict[str, Held],
        *,
        tokens: int,
        rows: int = 0,
        seed: int,
        task: Any,
        bleu: BLEU,
        how: Any,
    ) -> None:
        self.tokenizers, self.held, self.how = tokenizers, held, how
        self.tokens, self.settings, self.bleu = tokens, task, bleu
        self.batches = Batches(train, tokens=tokens, rows=rows, seed=seed)
        self.fingerprint = train.fingerprint

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Batch:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        return self.batches.batch(step, rank, world)

    def epoch(self, step: int, world: int = 1) -> float:
        return self.batches.epoch(step, world)

    @property
    def steady(self) -> bool:  # type: ignore[override]
        """With scheduled sampling the host throws another coin for each batch."""
        return self.settings.forcing_end is None

    def in_few_shapes(self, model: nn.Module) -> Callable[[Any], Any]:
        """Without padding, where the model can leave it out and there is a kernel that is told where rows begin."""
        hears_itself = self.settings.forcing < 1  # word by word, side by side
        able = getattr(model, "unpads", False) and has_kernel(next(model.parameters()).device)
        if hears_itself or not able:
            return super().in_few_shapes(model)
        longest = getattr(model, "longest", None)
        return lambda batch: batch.roomy(longest)

    def cost(self, model: nn.Module, batch: Batch, before: Any) -> Loss:
        """`before` counts batches for scheduled sampling and remembers what is usual for hard attention; else None."""
        settings, carried = self.settings, before or {}
        told, wanted = batch.target[:, :-1], batch.target[:, 1:]
        heard = coins(told, chance_of_truth(carried.get("batches", 0), settings))
        real, asked = _unpadded(model, batch) if heard is None else (batch.real, batch.asked)
        hidden, state = model(batch.source, real, told, heard, asked)
        if isinstance(asked, SteadySpans):
            wanted, asked = asked.pack(wanted), asked.held
        loss: Loss = model.head(  # type: ignore[operator]
            hidden, wanted, real=asked, count=batch.count, smoothing=settings.smoothing
        )
        after = {} if settings.forcing_end is None else {"batches": carried.get("batches", 0) + 1}
        if "choice" in state.notes:
            loss.total, after["usual"] = with_choices(
                loss, model.head, hidden, wanted, batch.asked, state.notes, settings, carried.get("usual")  # type: ignore[arg-type]
            )  # fmt: skip
        loss.carry = after or None
        return loss

    def evaluate(self, model: nn.Module, split: str, progress: Progress | None = None) -> dict[str, float]:
        if split not in self.held:
            return {}
        assert isinstance(model, Autoregressive)
        how, held = self.how, self.held[split]
        return measure(
            model, self.tokenizers, held, how, self.bleu,
            free_running=self.settings.free_running, tokens=self.tokens, progress=progress,
        )  # fmt: skip

    def look(self, model: nn.Module) -> Look | None:
        """At one pair that was held out, always the same; None where there is none, or nothing looks across."""
        store = self.held["valid"].store if "valid" in self.held else None
        if store is None or (place := typical(store)) is None:
            return None
        source, target = store.pair(place)
        return aligned(model, self.tokenizers, source.tolist(), target.tolist())


def _unpadded(model: nn.Module, batch: Batch) -> tuple[Tensor | SteadySpans, Tensor | SteadySpans]:
    """What is read and what is asked of a batch; without padding where it has room for that."""
    if batch.room is None:
        return batch.real, batch.asked
    (reading, writing), nearby = batch.room, cast(Autoregressive, model).nearby
    return SteadySpans(batch.read, reading, nearby), SteadySpans(batch.asked, writing, nearby)


def typical(store: Store) -> int | None:
    """The place of a pair of middling length among those that are looked at with ease; None where all are longer."""
    lengths = store.listing.array
    easy = np.flatnonzero((lengths["source"] <= SHOWN) & (lengths["target"] <= SHOWN))
    return int(easy[len(easy) // 2]) if len(easy) else None


@torch.inference_mode()
def aligned(model: nn.Module, tokenizers: Tokenizers, source: list[int], target: list[int]) -> Look | None:
    """Where the last cross-attention looks while a given answer is written, all of its marks included."""
    names = crosses(model)
    if not names:
        return None
    device = next(model.parameters()).device
    with watch(model, names[-1]) as seen:
        model(torch.tensor([source], device=device), None, torch.tensor([target[:-1]], device=device))
    weights = torch.cat(seen[names[-1]], -2)[0].double().mean(0)
    return Look(
        tokenizers.source.decode(source), tokenizers.target.decode(target), names[-1],
        tokenizers.target.tokens(target[1:]), tokenizers.source.tokens(source), weights.cpu().numpy().round(6).tolist(),
    )  # fmt: skip


def crosses(model: nn.Module) -> list[str]:
    """The attentions that look from the answer to the source."""
    return [name for name, part in model.named_modules() if isinstance(part, Attention) and name.endswith("cross")]


def surprise(model: Autoregressive, batch: Batch, told: Tensor | None = None) -> Tensor:
    """Negative log-likelihood of each real word of a batch, the true words before it given, or those that it said."""
    before, wanted = batch.target[:, :-1], batch.target[:, 1:]
    hidden, _ = model(batch.source, batch.real, before, told)
    return -model.head.logprobs(hidden, wanted)[batch.written[:, 1:]]


@torch.inference_mode()
def free_perplexity(model: Autoregressive, held: Held, *, tokens: int = 4096) -> float:
    """Of the reference's words, given those that the model said before them."""
    device = next(model.parameters()).device
    nll, count = 0.0, 0
    for batch in in_order(held.store, tokens=tokens):
        batch = batch.to(device)
        lost = surprise(model, batch, torch.zeros_like(batch.target[:, :-1], dtype=torch.bool))
        nll, count = nll + float(lost.double().sum()), count + len(lost)
    definition = (
        f"exp of the mean negative log-likelihood of {count} tokens, each given the model's own words before it"
    )
    return Measure(math.exp(min(nll / count, 700.0)), definition)


@torch.inference_mode()
def measure(
    model: Autoregressive,
    tokenizers: Tokenizers,
    held: Held,
    how: Any,
    scale: BLEU,
    *,
    free_running: bool = False,
    tokens: int = 4096,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Loss and perplexity under teacher forcing; BLEU, chrF and exact match of what the model writes by itself."""
    device = next(model.parameters()).device
    nll, count = 0.0, 0
    for batch in in_order(held.store, tokens=tokens):
        lost = surprise(model, batch.to(device))
        nll, count = nll + float(lost.double().sum()), count + len(lost)
    answers = rewrite(model, tokenizers, held.sources, how, tokens=tokens, progress=progress)
    texts = [answer.texts[0] for answer in answers]
    found: dict[str, float] = {
        "loss": Measure(nll / count, f"mean negative log-likelihood of {count} tokens, teacher-forced, unsmoothed"),
        "perplexity": perplexity(nll, count),
        "bleu": bleu(texts, held.references, scale),
        "chrf": chrf(texts, held.references, scale),
        "exact": exact_match(texts, held.references, scale),
    }
    return {**found, "free_perplexity": free_perplexity(model, held, tokens=tokens)} if free_running else found


@torch.inference_mode()
def rewrite(
    model: Autoregressive,
    tokenizers: Tokenizers,
    sources: Sequence[str],
    how: Any,
    *,
    prefixes: Sequence[str] | None = None,
    longest: int | None = None,
    tokens: int = 4096,
    progress: Progress | None = None,
    record: Record | None = None,
) -> list[Answer]:
    """Answers to many sources, batched by length, in the order in which the sources came. `how` is a DecodeConfig.

    Nothing answers nothing: an empty source gives an empty text, so that line n answers line n. A `record` is of the
    search for one source.
    """
    coded = encode_sources(tokenizers, sources, longest)
    begun = None if prefixes is None else spelt(tokenizers.target, prefixes)
    nothing = tokenizers.source.marks.source([])
    found = {i: [NOTHING] for i, ids in enumerate(coded) if ids == nothing}
    asked = [i for i in range(len(coded)) if i not in found]
    width = how.nbest if how.sample else max(how.beam, how.nbest)
    for rows in by_length({i: len(coded[i]) for i in asked}, tokens // width):
        some = None if begun is None else [begun[i] for i in rows]
        found.update(zip(rows, _search(model, tokenizers, [coded[i] for i in rows], how, some, record), strict=True))
        if progress is not None:
            progress(len(found), len(sources))
    return [
        Answer(text, tuple(tokenizers.target.decode(h.tokens) for h in found[i]), tuple(found[i]))
        for i, text in enumerate(sources)
    ]


@torch.inference_mode()
def score_pairs(
    model: Autoregressive,
    tokenizers: Tokenizers,
    pairs: Sequence[tuple[str, str]],
    *,
    longest: int | None = None,
    tokens: int = 4096,
) -> list[list[float]]:
    """Log-probability of each token of each given answer, its end mark last."""
    sources = encode_sources(tokenizers, [source for source, _ in pairs], longest)
    texts = [target.strip() for _, target in pairs]
    targets = [tokenizers.target.marks.target(ids) for ids in spelt(tokenizers.target, texts)]
    device = next(model.parameters()).device
    found: dict[int, list[float]] = {}
    for rows in by_length({i: max(len(sources[i]), len(targets[i])) for i in range(len(pairs))}, tokens):
        source, real = pad([sources[i] for i in rows])
        target, _ = pad([targets[i] for i in rows])
        source, real, target = source.to(device), real.to(device), target.to(device)
        hidden, _ = model(source, real, target[:, :-1])
        for i, line in zip(rows, model.head.logprobs(hidden, target[:, 1:]).tolist(), strict=True):
            found[i] = line[: len(targets[i]) - 1]
    return [found[i] for i in range(len(pairs))]


def encode_sources(
    tokenizers: Tokenizers, sources: Sequence[str], longest: int | None, *, first: int = 1
) -> list[list[int]]:
    """Token ids with their marks, of the text without outer white space: so the training data was read.

    An input over the limit is refused, never cut in silence; `first` is the number of the first.
    """
    texts = [source.strip() for source in sources]
    coded = [tokenizers.source.marks.source(ids) for ids in spelt(tokenizers.source, texts)]
    for number, ids in enumerate(coded, first):
        if longest is not None and len(ids) > longest:
            raise DataError(
                f"input {number} has {len(ids)} tokens with its end mark, but this model reads at most {longest}; "
                "split it into sentences"
            )
    return coded


def spelt(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts that are asked about.

    A model that came without a vocabulary calls its tokens 0, 1, 2 and so on: other words are refused, not left out.
    """
    if _numbered(tokenizer):
        called = {name for i, name in tokenizer.words().items() if name == str(i)}
        if strange := next((word for text in texts for word in text.split() if word not in called), ""):
            what = f"{strange[:40]!r} is no token of this model, which came without a vocabulary"
            raise DataError(f"{what}; numbers from 0 to {len(called) - 1} are wanted, with spaces between them")
    return tokenizer.encode_many(texts)


def _numbered(tokenizer: Tokenizer) -> bool:
    names = (tokenizer.inner.id_to_token(i) == str(i) for i in range(tokenizer.size) if i not in tokenizer.special)
    return tokenizer.inner.token_to_id("0") == 0 and isinstance(tokenizer.inner.model, WordLevel) and all(names)


def by_length(lengths: Mapping[int, int], tokens: int) -> Iterator[list[int]]:
    """Indices in batches of similar length, longest first, each within the budget of tokens."""
    rows: list[int] = []
    for i in sorted(lengths, key=lambda i: (-lengths[i], i)):
        if rows and (len(rows) + 1) * lengths[rows[0]] > tokens:
            yield rows
            rows = []
        rows.append(i)
    if rows:
        yield rows


def _search(
    model: Autoregressive,
    tokenizers: Tokenizers,
    sources: list[list[int]],
    how: Any,
    begun: list[list[int]] | None,
    record: Record | None = None,
) -> list[list[Hypothesis]]:
    """`begun` are the first words of each answer, where they are given; what opens every answer comes before them."""
    device, marks = next(model.parameters()).device, tokenizers.target.marks
    source, real = (t.to(device) for t in pad(sources))
    seen = real if len({len(ids) for ids in sources}) > 1 else None  # no mask where nothing is padded
    most, frame = model.longest or math.inf, len(tokenizers.source.marks.source([]))
    limit = torch.tensor([min(len(marks.opening) + room(how, len(ids) - frame), most) for ids in sources])
    prefixes = [[*marks.opening, *words] for words in begun or [[]] * len(sources)]
    prompt = torch.full((len(sources), 1), marks.begin, device=device)
    with _coverage(model, 0.0 if how.sample else how.coverage, real) as coverage:
        return search(
            model.step, lambda: model.start(source, seen), prompt, how, eos=marks.end, specials=marks.unsayable,
            limit=limit, texts=sources, prefixes=prefixes if any(prefixes) else None, coverage=coverage, record=record,
            quick=None if model.writer is None else partial(model.writer, source, seen),
        )  # fmt: skip


@contextmanager
def _coverage(model: nn.Module, weight: float, real: Tensor) -> Iterator[Coverage | None]:
    """Coverage is what the last cross-attention read, its heads averaged; watched only where it is asked for."""
    if not weight:
        yield None
        return
    names = crosses(model)
    if not names:
        raise ConfigError("decode.coverage: this model has no attention whose coverage could be measured; write 0")
    name = names[-1]
    with watch(model, name, queries=[-1]) as seen:
        yield Coverage(weight, lambda: seen[name].pop()[:, :, -1].mean(1), real)
