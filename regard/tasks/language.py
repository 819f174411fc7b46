"""Running text: the next token from those before it. What can be asked of who has learnt it is in continuing.py."""

from __future__ import annotations

import math
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from regard.core.documents import Documents
from regard.core.head import Loss
from regard.core.state import State, each
from regard.data.stream import WINDOWS, Excerpts, Stream, in_order
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics import Measure
from regard.tasks import Steady, last_word

MEASURES = ("loss", "perplexity", "bits")
OFFICIAL = {"words": 10, "characters": 1}  # parts that the TCN's authors read a held-out text in, word_cnn and char_cnn

Order: TypeAlias = Literal["random", "lanes"]
Counted: TypeAlias = Literal["every", "official", "last_word", "official_last_word"]


class Language(Steady):
    """The task: cross-entropy in windows, at random or along lanes while training, in order in evaluation.

    Along lanes, a model whose state stays of one size goes on from the state after the window before: truncated
    back-propagation, for the gradient ends where the window begins.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: Stream,
        held: dict[str, Stream],
        *,
        window: int,
        tokens: int,
        rows: int = 0,
        seed: int,
        apart: bool = False,
        order: Order = "random",
        context: int = 0,
        counted: Counted = "every",
        stop: str = "",
    ) -> None:
        self.tokenizer, self.held, self.tokens = tokenizer, held, tokens
        self.order, self.counted, self.stop = order, counted, stop
        self.windows = WINDOWS[order](
            train, window=window, tokens=tokens, rows=rows, seed=seed, apart=apart, context=context
        )
        how = "" if (order, context) == ("random", 0) else f" {order} {context}"
        named = f"{train.fingerprint} {window} {apart}{how}"
        self.fingerprint = blake2b(named.encode(), digest_size=16).hexdigest()

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Excerpts:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        return self.windows.batch(step, rank, world)

    def epoch(self, step: int, world: int = 1) -> float:
        return self.windows.epoch(step, world)

    def cost(self, model: nn.Module, batch: Excerpts, before: Any) -> Loss:
        hidden, state = _read(model, batch, before)
        loss: Loss = model.head(hidden, batch.wanted)  # type: ignore[operator]
        if carried(model, self.order, self.windows.context):
            loss.carry = each(state.past, Tensor.detach)
        return loss

    def taken_up(self, batch: Excerpts, carry: Any) -> Any:
        """The carry is the state that lanes have come to, and where: with any other text the model begins anew."""
        goes_on = carry is not None and carry["at"] == list(batch.ids)
        return carry["past"] if goes_on else None

    def handed_on(self, batch: Excerpts, left: Any) -> Any:
        return None if left is None else {"past": left, "at": batch.ends}

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        if split not in self.held:
            return {}
        windows = self.windows
        return measure(
            model, self.tokenizer, self.held[split],
            window=windows.window, tokens=self.tokens, apart=windows.apart,
            order=self.order, context=windows.context, counted=self.counted, stop=self.stop,
        )  # fmt: skip


def carried(model: nn.Module, order: Order, context: int) -> bool:
    """Whether the model goes on from window to window."""
    if order == "random" or not getattr(model, "carries", False):
        return False
    if context:
        what = f'data.context = {context} with data.order = "lanes": this model has the state of all that it has read'
        raise ConfigError(f'{what}, and need not read it again; write context = 0, or order = "random"')
    return True


def measured(counted: Counted, stop: str = "") -> tuple[str, ...]:
    """The names of all that is measured."""
    return last_word.MEASURES if counted in last_word.AHEAD else (*MEASURES, "frame_loss") if stop else MEASURES


def _read(model: nn.Module, batch: Excerpts, past: Any = None) -> tuple[Tensor, State]:
    """Hidden states (B, T - context, dim) where a counted token follows, and the state after all but the last."""
    apart = {} if batch.documents is None else {"documents": Documents(batch.documents, batch.starts)}
    goes_on = {} if past is None else {"past": past}
    hidden, state = model(None, None, batch.text[:, :-1], **apart, **goes_on)
    return hidden[:, batch.context :], state


@torch.inference_mode()
def measure(
    model: nn.Module,
    tokenizer: Tokenizer,
    held: Stream,
    *,
    window: int,
    tokens: int = 16_384,
    apart: bool = False,
    order: Order = "random",
    context: int = 0,
    counted: Counted = "every",
    stop: str = "",
) -> dict[str, float]:
    """Every token of a held-out text but its first, each given those before it: in its window, `context` at least, or
    in the whole text, where the state is handed on. Or what `counted` says instead. `stop` ends a frame of music.
    """
    if counted in last_word.AHEAD:
        return last_word.measure(model, tokenizer, held, tokens=tokens, ahead=last_word.AHEAD[counted])
    device, spells = next(model.parameters()).device, _spells(tokenizer)
    official = counted == "official"
    parts = held.parts(OFFICIAL["characters" if spells else "words"]) if official else [held]
    goes_on = carried(model, order, context)
    length = tokens if goes_on else window  # of a text that is read as one it does not matter where it is cut
    stops = torch.tensor(_spelt_as(tokenizer, stop) if stop else [], dtype=torch.long, device=device)
    nll, count, frames = 0.0, 0, 0
    for part in parts:
        past = None
        for batch in in_order(part, window=length, tokens=tokens, apart=apart, context=context):
            batch = replace(batch, context=context if official else batch.context).to(device)
            hidden, state = _read(model, batch, past)
            logprobs = model.head.logprobs(hidden, batch.wanted)  # type: ignore[union-attr, operator]
            nll, count = nll - float(logprobs.double().sum()), count + batch.tokens
            frames += int(torch.isin(batch.wanted, stops).sum())
            past = state.past if goes_on else None
    if not count:
        raise DataError(f"the held-out text has {len(held)} tokens, and nothing to predict; give more")
    left_out = _left_out(len(parts), context) if official else ""
    what = f"{count} tokens, {_given(window, context, goes_on, apart)}{left_out}"
    found: dict[str, float] = {
        "loss": Measure(nll / count, f"mean negative log-likelihood of {what}"),
        "perplexity": Measure(math.exp(min(nll / count, 700)), f"exp of the mean negative log-likelihood of {what}"),
    }
    if spells:
        bits = f"negative log2-likelihood to a character, of {what}"
        found["bits"] = Measure(nll / count / math.log(2), bits)
    if frames:
        spelling = "notes, stops and end marks, one by one, so no less than that of frames as sets of keys"
        cost = f"negative log-likelihood to a frame, of which there are {frames} in {what}: {spelling}"
        found["frame_loss"] = Measure(nll / frames, cost)
    return found


def _given(window: int, context: int, goes_on: bool, apart: bool) -> str:
    if goes_on:
        return f"each given all before it{' in its document' if apart else ''}, the state handed on"
    if context:
        return f"each given the {context} before it or more, in windows of {window} that overlap by as many"
    return f"all windows of {window} that do not overlap"


def _left_out(parts: int, context: int) -> str:
    several = f"each of {parts} parts of the text" if parts > 1 else "the text"
    first = f"first {context + 1} tokens" if context else "first token"
    return f"; the {first} of {several} and what does not fill a part left out, as the TCN's authors do"


def _spelt_as(tokenizer: Tokenizer, word: str) -> list[int]:
    """The tokens that are this word."""
    return [i for i, piece in enumerate(tokenizer.tokens(range(tokenizer.size))) if piece.strip("▁ ") == word]


def _spells(tokenizer: Tokenizer) -> bool:
    """Whether each token is a character."""
    marks = {*tokenizer.special, tokenizer.marks.unknown}
    return all(len(piece) == 1 for piece, i in tokenizer.inner.get_vocab().items() if i not in marks)
