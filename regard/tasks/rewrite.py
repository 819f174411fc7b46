"""Text in, other text out: translation, and whatever else reads one sequence and writes another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.head import Loss
from regard.core.watch import attentions, watch
from regard.data.batch import Batch, Batches, in_order, pad
from regard.data.store import Store
from regard.data.tokenizer import BOS, EOS, PAD, Tokenizers
from regard.decode import Coverage, Hypothesis, beam, greedy, sample
from regard.decode.filters import limits, shapes
from regard.decode.search import PENALTIES
from regard.errors import DataError
from regard.metrics import Measure
from regard.metrics.translation import BLEU, bleu, chrf, exact_match, perplexity

Progress = Callable[[int, int], None]  # done, of how many

MEASURES = ("loss", "perplexity", "bleu", "chrf", "exact")
NOTHING = Hypothesis(tokens=(), score=0.0, logprob=0.0, finished=True, rows=())


@dataclass(frozen=True)
class Answer:
    """What came out for one input: the best first."""

    source: str
    texts: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]


@dataclass(frozen=True)
class Held:
    """A held-out split: its tokens for the loss, its text for the metrics."""

    store: Store
    sources: list[str]
    references: list[str]  # as a reader would write them


class Rewrite:
    """The task: teacher-forced cross-entropy in training, decoding and corpus metrics in evaluation."""

    def __init__(
        self,
        tokenizers: Tokenizers,
        train: Store,
        held: dict[str, Held],
        *,
        tokens: int,
        seed: int,
        smoothing: float,
        bleu: BLEU,
        how: Any,
    ) -> None:
        self.tokenizers, self.held, self.how = tokenizers, held, how
        self.tokens, self.smoothing, self.bleu = tokens, smoothing, bleu
        self.batches = Batches(train, tokens=tokens, seed=seed)
        self.fingerprint = train.fingerprint

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Batch:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        return self.batches.batch(step, rank, world)

    def epoch(self, step: int, world: int = 1) -> float:
        return self.batches.epoch(step, world)

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> Loss:
        return teacher_forced(model, batch, self.smoothing)

    def evaluate(self, model: nn.Module, split: str, progress: Progress | None = None) -> dict[str, float]:
        if split not in self.held:
            return {}
        assert isinstance(model, Autoregressive)
        how, held = self.how, self.held[split]
        return measure(model, self.tokenizers, held, how, self.bleu, tokens=self.tokens, progress=progress)


def teacher_forced(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
    """Each word is predicted from the true words before it."""
    told, wanted = batch.target[:, :-1], batch.target[:, 1:]
    hidden, _ = model(batch.source, batch.real, told)
    loss: Loss = model.head(hidden, wanted, real=wanted != PAD, smoothing=smoothing)  # type: ignore[operator]
    return loss


@torch.inference_mode()
def measure(
    model: Autoregressive,
    tokenizers: Tokenizers,
    held: Held,
    how: Any,
    scale: BLEU,
    *,
    tokens: int = 4096,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Loss and perplexity under teacher forcing; BLEU, chrF and exact match of what the model writes by itself."""
    device = next(model.parameters()).device
    nll, count = 0.0, 0
    for batch in in_order(held.store, tokens=tokens):
        loss = teacher_forced(model, batch.to(device))
        nll, count = nll + float(loss.parts["nll"]), count + loss.count
    answers = rewrite(model, tokenizers, held.sources, how, tokens=tokens, progress=progress)
    texts = [answer.texts[0] for answer in answers]
    return {
        "loss": Measure(nll / count, f"mean negative log-likelihood of {count} tokens, teacher-forced, unsmoothed"),
        "perplexity": perplexity(nll, count),
        "bleu": bleu(texts, held.references, scale),
        "chrf": chrf(texts, held.references, scale),
        "exact": exact_match(texts, held.references, scale),
    }


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
) -> list[Answer]:
    """Answers to many sources, batched by length, in the order in which the sources came. `how` is a DecodeConfig.

    Nothing answers nothing: an empty source gives an empty text, so that line n answers line n.
    """
    coded = encode_sources(tokenizers, sources, longest)
    begun = None if prefixes is None else tokenizers.target.encode_many(list(prefixes))
    found = {i: [NOTHING] for i, ids in enumerate(coded) if ids == [EOS]}
    asked = [i for i in range(len(coded)) if i not in found]
    width = how.nbest if how.sample else max(how.beam, how.nbest)
    for rows in _by_length({i: len(coded[i]) for i in asked}, tokens // width):
        some = None if begun is None else [begun[i] for i in rows]
        found.update(zip(rows, _search(model, [coded[i] for i in rows], how, some), strict=True))
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
    targets = [[BOS, *ids, EOS] for ids in tokenizers.target.encode_many([target.strip() for _, target in pairs])]
    device = next(model.parameters()).device
    found: dict[int, list[float]] = {}
    for rows in _by_length({i: max(len(sources[i]), len(targets[i])) for i in range(len(pairs))}, tokens):
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
    """Token ids with the end mark, of the text without outer white space: so the training data was read.

    An input over the limit is refused, never cut in silence; `first` is the number of the first.
    """
    coded = [[*ids, EOS] for ids in tokenizers.source.encode_many([source.strip() for source in sources])]
    for number, ids in enumerate(coded, first):
        if longest is not None and len(ids) > longest:
            raise DataError(
                f"input {number} has {len(ids)} tokens with its end mark, but this model reads at most {longest}; "
                "split it into sentences"
            )
    return coded


def _by_length(lengths: Mapping[int, int], tokens: int) -> Iterator[list[int]]:
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
    model: Autoregressive, sources: list[list[int]], how: Any, prefixes: list[list[int]] | None
) -> list[list[Hypothesis]]:
    device = next(model.parameters()).device
    source, real = (t.to(device) for t in pad(sources))
    seen = real if len({len(ids) for ids in sources}) > 1 else None  # no mask where nothing is padded
    state = model.start(source, seen)
    most = model.longest or math.inf
    room = torch.tensor(
        [min(how.longest or math.ceil(how.ratio * (len(ids) - 1)) + how.extra, most) for ids in sources]
    )
    filters = limits(how, eos=EOS, specials=(PAD, BOS))
    prompt = torch.full((len(sources), 1), BOS, device=device)
    if how.sample:
        found = []
        for draw in range(how.nbest):
            seeds = [_seed(how.seed, draw, ids) for ids in sources]
            some = sample(
                model.step, model.start(source, seen) if draw else state, prompt,
                eos=EOS, limit=room, seeds=seeds, filters=(*filters, *shapes(how)), prefixes=prefixes,
            )  # fmt: skip
            found.append(some)
        return [sorted(drawn, key=lambda h: -h.score) for drawn in zip(*found, strict=True)]
    if how.beam == 1 and how.nbest == 1 and how.expand in (None, 1) and not how.coverage:
        return [[h] for h in greedy(model.step, state, prompt, eos=EOS, limit=room, filters=filters, prefixes=prefixes)]
    with _coverage(model, how.coverage, real) as coverage:
        found = beam(
            model.step, state, prompt, eos=EOS, limit=room, keep=max(how.beam, how.nbest), expand=how.expand,
            penalty=PENALTIES[how.penalty](how.alpha), coverage=coverage, filters=filters, prefixes=prefixes,
        )  # fmt: skip
    return [best[: how.nbest] for best in found]


@contextmanager
def _coverage(model: nn.Module, weight: float, real: Tensor) -> Iterator[Coverage | None]:
    """Coverage is what the last cross-attention read, its heads averaged; watched only where it is asked for."""
    if not weight:
        yield None
        return
    name = [name for name in attentions(model) if name.endswith("cross")][-1]
    with watch(model, name, queries=[-1]) as seen:
        yield Coverage(weight, lambda: seen[name].pop()[:, :, -1].mean(1), real)


def _seed(seed: int, draw: int, ids: Sequence[int]) -> int:
    """Random numbers belong to a sentence, not to its place in the batch."""
    return int.from_bytes(blake2b(repr((seed, draw, tuple(ids))).encode(), digest_size=7).digest())
