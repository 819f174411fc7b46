"""BERT's pre-training: hidden tokens follow from all around them, and one segment follows another or does not.

    loss = mean over the chosen tokens of -log p(token) + mean over the sequences of -log p(is next, or is not)

A `Loss` is one sum with one count, here of chosen tokens, so that micro-batches add up to exactly the one big batch.
The second mean is brought to that count by a constant: how many tokens are chosen of a sequence, on average over the
data. So both parts are plain sums, however the data is cut into batches, and over an epoch the means weigh the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.head import Loss
from regard.core.spans import Spans, SteadySpans, has_kernel
from regard.data.batch import pad
from regard.data.documents import Documents
from regard.data.forms import lengthen, longer, more
from regard.data.lengths import in_order as by_length
from regard.data.masking import Masking, later_pieces
from regard.data.segments import How, Layouts, Sequences, check
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics import Measure
from regard.tasks import Steady

MEASURES = ("loss", "masked_loss", "perplexity", "accuracy", "next_accuracy")
LAYOUTS = 10  # as often as the paper's code passes over the text
LOGITS = 2**24  # alive at once in evaluation


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Sequences side by side, some of their tokens hidden."""

    shown: Tensor  # (B, T) padded
    real: Tensor  # (B, T) False at padding
    segments: Tensor  # (B, T)
    at: Tensor  # (N,) where the chosen tokens stand, rows one behind the other
    words: Tensor  # (N,) what they are
    random: Tensor  # (B,) 0: the second segment follows the first; 1: it does not
    ids: tuple[int, ...]  # of the sequences in their layout
    usual: float  # tokens chosen of a sequence, on average over the data
    tokens: int  # to be guessed
    guessed: Tensor | None = None  # (N,) False where a place only fills up; None: nowhere
    room: int | None = None  # places for what is real, where it is read without padding in one of few shapes

    @property
    def read(self) -> Tensor | Spans:
        """What a model reads of it."""
        unpadded = self.room is not None and has_kernel(self.real.device)
        return SteadySpans(self.real, self.room or 0) if unpadded else self.real

    @property
    def count(self) -> int:
        """What the loss is summed over."""
        return self.tokens

    def steady(self, longest: int | None = None) -> MaskedBatch:
        """The same in one of few shapes."""
        (_, before), spare = self.shown.shape, more(self.tokens) - self.tokens
        length = longer(before, longest)
        shown, real, segments = (lengthen(t, length) for t in (self.shown, self.real, self.segments))
        at, words = (F.pad(t, (0, spare)) for t in (self.at // before * length + self.at % before, self.words))
        return replace(
            self, shown=shown, real=real, segments=segments, at=at, words=words,
            guessed=torch.arange(len(at)) < self.tokens, room=more(int(real.sum())),
        )  # fmt: skip

    def to(self, device: torch.device | str) -> MaskedBatch:
        """On a GPU the copy goes on while the caller does."""
        pinned = torch.device(device).type == "cuda" and not self.shown.is_cuda

        def move(tensor: Tensor) -> Tensor:
            return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)

        return replace(
            self, shown=move(self.shown), real=move(self.real), segments=move(self.segments),
            at=move(self.at), words=move(self.words), random=move(self.random),
            guessed=None if self.guessed is None else move(self.guessed),
        )  # fmt: skip


class Masked(Steady):
    """The task. `steps` is how many batches there will be in all, of which the first may be of shorter sequences."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: Documents,
        held: dict[str, Documents],
        *,
        tokens: int,
        rows: int = 0,
        steps: int,
        seed: int,
        longest: int,
        task: Any,
    ) -> None:
        if task.warm_length > longest:
            shorter = f"write a shorter one, or data.longest = {task.warm_length}"
            raise ConfigError(f"task.warm_length = {task.warm_length} is more than data.longest = {longest}; {shorter}")
        self.tokenizer, self.settings, self.seed = tokenizer, task, seed
        self.tokens, self.most = tokens, rows
        self.masking = masking_of(tokenizer, task)
        self.warm_steps = round(task.warm_share * steps) if task.warm_length else 0
        copies = task.copies or LAYOUTS
        self.long = layouts_of(train, task, longest, copies, seed)
        self.warm = layouts_of(train, task, task.warm_length, copies, seed) if self.warm_steps else self.long
        self.usual = {layouts: self._usual(layouts) for layouts in (self.long, self.warm)}
        self.held, self.longest = held, longest
        self.fingerprint = train.fingerprint

    def _usual(self, layouts: Layouts) -> float:
        counts = layouts.counts()
        return float(counts @ self.masking.count(np.arange(len(counts))) / counts.sum())

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> MaskedBatch:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        layouts, step = self._phase(step)
        epoch, layout, places = layouts.turn(step, rank, world, tokens=self.tokens, rows=self.most)
        copy = layout if self.settings.copies else epoch
        found = layouts.gather(layout, places, self.tokenizer.marks)
        return hide(found, self.masking, places, f"{self.seed} {layouts.how.length} {copy}", self.usual[layouts])

    def _phase(self, step: int) -> tuple[Layouts, int]:
        """Short sequences first: attention costs the square of the length, and most is learnt without the long ones."""
        return (self.warm, step) if step < self.warm_steps else (self.long, step - self.warm_steps)

    def epoch(self, step: int, world: int = 1) -> float:
        warm, long = min(step, self.warm_steps), max(0, step - self.warm_steps)
        return sum(
            layouts.epoch(done, world, tokens=self.tokens, rows=self.most)
            for layouts, done in ((self.warm, warm), (self.long, long))
        )

    def cost(self, model: nn.Module, batch: MaskedBatch, before: Any) -> Loss:
        """Only what is to be guessed goes through the head."""
        hidden = model(batch.shown, batch.read, batch.segments)
        chosen = hidden.flatten(0, 1).index_select(0, batch.at)
        loss: Loss = model.masked(  # type: ignore[operator]
            chosen, batch.words, real=batch.guessed, count=batch.count
        )
        loss.parts = {"masked": loss.parts["nll"]}
        if self.settings.next_sentence:
            follows = batch.usual * _next_loss(_next_logits(model, hidden), batch.random)
            loss.total, loss.parts["next"] = loss.total + follows, follows.detach()
        return loss

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        if split not in self.held:
            return {}
        held = self.held[split]
        return measure(
            model, self.tokenizer, held, self.settings, longest=self.longest, tokens=self.tokens
        )  # fmt: skip


def masking_of(tokenizer: Tokenizer, task: Any) -> Masking:
    later = later_pieces(tokenizer.tokens(range(tokenizer.size))) if task.whole_words else None
    return Masking(tokenizer.marks, tokenizer.size, share=task.share, most=task.most, later=later)


def layouts_of(documents: Documents, task: Any, length: int, count: int, seed: int) -> Layouts:
    return Layouts(documents, How(length, pairs=task.next_sentence, short=task.short), count=count, seed=seed)


def hide(found: Sequences, masking: Masking, places: np.ndarray, key: str, usual: float = 1.0) -> MaskedBatch:
    shown, chosen = masking.hide(found.tokens, places, key)
    at = np.flatnonzero(chosen)
    tensor = torch.from_numpy
    return MaskedBatch(
        shown=tensor(shown), real=tensor(found.real), segments=tensor(found.segments),
        at=tensor(at), words=tensor(found.tokens.flat[at]), random=tensor(found.random),
        ids=tuple(places.tolist()), usual=usual, tokens=len(at),
    )  # fmt: skip


def in_order(documents: Documents, tokenizer: Tokenizer, task: Any, longest: int, tokens: int) -> Iterator[MaskedBatch]:
    """Every sequence of a held-out split once, from long to short, and always the same tokens hidden."""
    layouts, masking = layouts_of(documents, task, longest, 1, 0), masking_of(tokenizer, task)
    check(tokens, longest)
    for some in by_length(layouts.lengths(0), tokens=tokens):
        yield hide(layouts.gather(0, some, tokenizer.marks), masking, some, "held out")


def _next_logits(model: nn.Module, hidden: Tensor) -> Tensor:
    logits: Tensor = model.next(model.summary(hidden))  # type: ignore[operator]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _next_loss(logits: Tensor, random: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, random, reduction="sum")


@torch.inference_mode()
def measure(
    model: nn.Module, tokenizer: Tokenizer, held: Documents, task: Any, *, longest: int, tokens: int = 16_384
) -> dict[str, float]:
    """Losses and hits over all sequences; the table of logits is made some rows at a time."""
    pairs: bool = task.next_sentence
    device = next(model.parameters()).device
    sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss and hits of tokens, then of sequences
    guessed = sequences = drawn = 0
    for batch in in_order(held, tokenizer, task, longest, tokens):
        batch = batch.to(device)
        hidden = model(batch.shown, batch.real, batch.segments)
        for logits, words in _logits(model, hidden.flatten(0, 1)[batch.at], batch.words):
            nll = nn.functional.cross_entropy(logits, words, reduction="sum")
            sums[:2] += torch.stack((nll, (logits.argmax(-1) == words).sum()))
        if pairs:
            logits = _next_logits(model, hidden)
            sums[2:] += torch.stack((_next_loss(logits, batch.random), (logits.argmax(-1) == batch.random).sum()))
        guessed, sequences, drawn = guessed + batch.tokens, sequences + len(batch.ids), drawn + int(batch.random.sum())
    nll, hits, next_nll, next_hits = sums.tolist()
    lost = f"mean negative log-likelihood of {guessed} chosen tokens"
    found: dict[str, float] = {
        "loss": Measure(nll / guessed, lost),
        "masked_loss": Measure(nll / guessed, lost),
        "perplexity": Measure(math.exp(min(nll / guessed, 700)), f"exp of the {lost}"),
        "accuracy": Measure(100 * hits / guessed, f"chosen tokens that are the likeliest, in % of {guessed}"),
    }
    if not pairs:
        return found
    joint = f"{lost}, plus that of {sequences} answers to whether a segment is the next"
    blind = f"the commoner answer alone gives {100 * max(drawn, sequences - drawn) / sequences:.1f}"
    return {
        **found,
        "loss": Measure(nll / guessed + next_nll / sequences, joint),
        "next_accuracy": Measure(
            100 * next_hits / sequences,
            f"right answers to whether a segment is the next, in % of {sequences}; {blind}",
        ),
    }


def _logits(model: nn.Module, hidden: Tensor, words: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    head: Any = model.masked
    some = max(1, LOGITS // len(head.weight))
    for h, y in zip(hidden.split(some), words.split(some), strict=True):
        logits = head.logits(h)
        yield logits.to(torch.promote_types(logits.dtype, torch.float32)), y


# ---- what a user asks


@dataclass(frozen=True)
class Guess:
    """A piece for a mask, and the text with it; other masks have their likeliest."""

    piece: str
    probability: float
    text: str


@dataclass(frozen=True)
class Filled:
    """A text with masks, and the guesses at each of them, the likeliest first."""

    source: str
    guesses: tuple[tuple[Guess, ...], ...]

    @property
    def text(self) -> str:
        """With the likeliest everywhere."""
        return self.guesses[0][0].text


MASK = re.compile(r"<mask>|\[MASK\]")


@torch.inference_mode()
def fill(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    top: int = 5,
    longest: int | None = None,
    tokens: int = 4096,
) -> list[Filled]:
    """The likeliest tokens where a text has <mask> or [MASK]. Marks are never guessed."""
    device = next(model.parameters()).device
    marks = tokenizer.marks
    never = sorted({*marks.all, *([] if marks.unknown is None else [marks.unknown])})
    coded = [masked_ids(tokenizer, text, number, longest) for number, text in enumerate(texts, 1)]
    found: dict[int, Filled] = {}
    for some in by_length(np.array([len(ids) for ids in coded]), tokens=tokens):
        shown, real = (tensor.to(device) for tensor in pad([coded[i] for i in some], marks.pad))
        hidden = model(shown, real, torch.zeros_like(shown))
        for row, i in enumerate(some):
            logits: Tensor = model.masked.logits(hidden[row][shown[row] == marks.mask])  # type: ignore[operator, union-attr]
            shares = logits.float().softmax(-1)
            shares[:, never] = -1
            most = min(top, shares.shape[1] - len(never))
            found[i] = _filled(tokenizer, texts[i], coded[i], shares.topk(most))
    return [found[i] for i in range(len(texts))]


def masked_ids(tokenizer: Tokenizer, text: str, number: int, longest: int | None) -> list[int]:
    """The tokens of a text, with its marks."""
    marks = tokenizer.marks
    parts = MASK.split(text.strip())
    if len(parts) == 1:
        raise DataError(f"input {number} has no mask; write <mask> where a word is to be guessed")
    if marks.mask is None:
        raise ConfigError("this model's vocabulary has no mask; name a run that was trained with task.name = masked")
    ids = [marks.begin]
    for part in tokenizer.encode_many([part.rstrip() if tokenizer.glued else part.strip() for part in parts]):
        ids += [*part, marks.mask]
    ids[-1] = marks.end  # in place of the mask that follows no part
    if longest is not None and len(ids) > longest:
        raise DataError(
            f"input {number} has {len(ids)} tokens with its marks, but this model reads at most {longest}; shorten it"
        )
    return ids


def _filled(tokenizer: Tokenizer, text: str, ids: list[int], best: tuple[Tensor, Tensor]) -> Filled:
    shares, pieces = (values.tolist() for values in best)
    places = [place for place, token in enumerate(ids) if token == tokenizer.marks.mask]
    filled = list(ids)
    for place, likely in zip(places, pieces, strict=True):
        filled[place] = likely[0]

    def guess(place: int, share: float, piece: int) -> Guess:
        whole = [*filled[1:place], piece, *filled[place + 1 : -1]]
        return Guess(tokenizer.tokens([piece])[0].strip("▁"), share, tokenizer.decode(whole))

    guesses = tuple(
        tuple(guess(place, share, piece) for share, piece in zip(*one, strict=True))
        for place, *one in zip(places, shares, pieces, strict=True)
    )
    return Filled(text, guesses)
