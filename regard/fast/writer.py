"""A whole search in one call: a Transformer or a GPT as the accelerator reads it.

    model  ─ matrices, norms and tables in their order ─▶  Model (native/writer.cpp)  ─ Ask ─▶  hypotheses

In fp32 the words are those of decode/search.py. What it cannot do (`Writer.__call__` says None) is searched for there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from ctypes import CFUNCTYPE, Structure, byref, c_int, c_void_p
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.changes import parts_of
from regard.decode.line import Hypothesis
from regard.fast.build import library
from regard.fast.reading import Entry, Latest, Model, Norm, Reading, Stack, Unable, as_it_is
from regard.models.gpt import GPT
from regard.models.transformer import Transformer

SHARE = 8  # sentences that are worth a thread
STEPS, ROOM = 2**14, 2**22  # words of an answer, and of all hypotheses together, for which there is room at once


_Asked = CFUNCTYPE(c_int)


class _Ask(Structure):
    _fields_ = [
        *((name, c_int) for name in ("sentences", "keep", "expand", "end", "shortest", "bans")),
        *((name, c_int) for name in ("prompt_length", "prefix_length", "longest")),
        *((name, c_void_p) for name in ("banned", "source", "source_lengths", "prompt", "prefixes")),
        *((name, c_void_p) for name in ("limits", "penalties")),
        ("stop", _Asked),
    ]


class _Answers(Structure):
    _fields_ = [(name, c_void_p) for name in ("counts", "lengths", "finished", "scores", "logprobs", "tokens", "rows")]


class Writer:
    """Searches with a model's weights, which are read once, and again where they have changed."""

    def __init__(self, model: Autoregressive, *, whole: bool) -> None:
        self.model, self.whole = model, whole
        self.latest = Latest(partial(_Whole, model, whole=whole))

    def __call__(
        self,
        source: Tensor | None,
        real: Tensor | None,
        prompt: Tensor,
        *,
        eos: int,
        limit: int | Tensor,
        keep: int = 1,
        expand: int | None = None,
        penalty: Callable[[int], float] | None = None,
        shortest: int = 0,
        banned: Sequence[int] = (),
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]] | None:
        """For each row of the prompt its `keep` best answers, best first; None where the plain search is to be asked.

        `shortest` and `banned` are the filters `at_least` and `never`; everything else is as in `decode.beam`.
        """
        if prompt.numel() == 0:
            return None
        limits = torch.full((len(prompt),), limit) if isinstance(limit, int) else limit
        steps = prompt.shape[1] + int(limits.max()) - 1  # tokens that are read, at most
        lengths, parts = None if source is None else _lengths(source, real), parts_of(self.model)
        read = None
        if self._can(parts, source, lengths, prompt, steps) and self._knows(banned, prefixes, len(prompt)):
            read = self.latest(parts) if _suit(limits, steps, keep) else None
        if read is None:
            return None
        longest, begun = int(limits.max()) + 1, _begun(prefixes)
        sources = None if source is None else _ints(source if real is None else source[real])
        costs = [1.0 if penalty is None or n == 0 else penalty(n) for n in range(longest + 1)]
        given = (
            torch.tensor(banned, dtype=torch.int32), sources, lengths, _ints(prompt), begun, _ints(limits),
            torch.tensor(costs, dtype=torch.float64),
        )  # fmt: skip
        ask = _Ask(
            len(prompt), keep, expand or keep, eos, shortest, len(banned), prompt.shape[1], begun.shape[1], longest,
            *(None if t is None else t.data_ptr() for t in given), stop := _asked(stopped := list[BaseException]()),
        )  # fmt: skip
        model, tables = self._placed(read, steps, 0 if lengths is None else int(lengths.max()))
        found = _Found(len(prompt), keep, longest)
        threads = torch.get_num_threads()
        shares = max(1, min(threads, len(prompt) // SHARE))
        done = library().regard_search(byref(model), byref(ask), byref(found.answers), shares, threads)
        del given, tables, read, stop  # the native side pointed at them until here
        if stopped:
            raise stopped[0]
        return found.hypotheses() if done else None

    def _can(
        self,
        parts: Sequence[nn.Module],
        source: Tensor | None,
        lengths: Tensor | None,
        prompt: Tensor,
        steps: int,
    ) -> bool:
        """Such a question is one for it."""
        model = self.model
        if type(model) not in (Transformer, GPT) or {"start", "states", "step"} & model.__dict__.keys():
            return False
        if not as_it_is(parts):
            return False
        if model.longest is not None and steps > model.longest:
            return False
        if model.sourced != (lengths is not None) or (model.sourced and prompt.shape[1] > 1):
            return False
        if source is not None and not _within(source, model.source_words):  # type: ignore[arg-type]
            return False
        return _within(prompt, model.words)

    def _knows(self, banned: Sequence[int], prefixes: Sequence[Sequence[int]] | None, rows: int) -> bool:
        """What may not be said are words, and so is what answers begin with, of which each row has its own."""
        begun = [word for prefix in prefixes or [] for word in prefix]
        if begun and len(prefixes or []) != rows:
            return False
        return all(0 <= word < self.model.words.num_embeddings for word in (*banned, *begun))

    def _placed(self, read: _Whole, steps: int, longest: int) -> tuple[Model, list[Tensor]]:
        """The model with positions as far as they are needed, for this search alone: waves have no end."""
        model = Model.from_buffer_copy(read.model)
        tables = [_table(self.model.positions(0, steps))]  # type: ignore[operator]
        model.target.positions = tables[0].data_ptr()
        if longest:
            tables.append(_table(self.model.source_positions(0, longest)))  # type: ignore[operator]
            model.source.positions = tables[1].data_ptr()
        return model, tables

    def __deepcopy__(self, memo: dict[int, Any]) -> Writer:
        return Writer(deepcopy(self.model, memo), whole=self.whole)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Writer, whole=self.whole), (self.model,)


class _Whole(Reading):
    """A model that writes."""

    def __init__(self, model: Autoregressive, *, whole: bool) -> None:
        super().__init__(model, whole=whole)
        self.model = self._transformer(model) if type(model) is Transformer else self._gpt(model)

    def _transformer(self, model: Transformer) -> Model:
        scale = model.config.dim**0.5 if model.config.scaled else 1.0
        return Model(
            self.stack(model.encoder, model.encoder_norm),
            self.stack(model.decoder, model.decoder_norm),
            Entry(self.numbers(model.source_words.weight), None, scale, self.norm(model.source_norm)),
            Entry(self.numbers(model.words.weight), None, scale, self.norm(model.norm)),
            self.matrix(model.head),
        )

    def _gpt(self, model: nn.Module) -> Model:
        if type(model) is not GPT or model.inputs is not None:
            raise Unable
        words = Entry(self.numbers(model.words.weight), None, 1.0, Norm())
        return Model(Stack(), self.stack(model.blocks, model.norm), Entry(), words, self.matrix(model.head))


class _Found:
    """Room for the answers, which the native side fills."""

    def __init__(self, sentences: int, keep: int, longest: int) -> None:
        self.counts = torch.zeros(sentences, dtype=torch.int32)
        self.lengths, self.finished = (torch.zeros(sentences, keep, dtype=torch.int32) for _ in range(2))
        self.scores, self.logprobs = (torch.zeros(sentences, keep, dtype=torch.float64) for _ in range(2))
        self.tokens, self.rows = (torch.zeros(sentences, keep, longest, dtype=torch.int32) for _ in range(2))
        parts = self.counts, self.lengths, self.finished, self.scores, self.logprobs, self.tokens, self.rows
        self.answers = _Answers(*(part.data_ptr() for part in parts))

    def hypotheses(self) -> list[list[Hypothesis]]:
        return [[self._one(s, i) for i in range(count)] for s, count in enumerate(self.counts.tolist())]

    def _one(self, sentence: int, place: int) -> Hypothesis:
        at = sentence, place
        length, finished = int(self.lengths[at]), bool(self.finished[at])
        tokens, rows = self.tokens[at][:length].tolist(), self.rows[at][: length + finished].tolist()
        return Hypothesis(tuple(tokens), float(self.scores[at]), float(self.logprobs[at]), finished, tuple(rows))


def _asked(stopped: list[BaseException]) -> Any:
    """Whether a signal wants the search stopped, such as Ctrl-C: their handlers run in Python alone, and in the main
    thread. What one of them raises is put aside, since nothing may be raised through the native side."""
    if threading.current_thread() is not threading.main_thread():
        return _Asked()
    hearing = _hearing(stopped)
    next(hearing)
    return _Asked(hearing.__next__)


def _hearing(stopped: list[BaseException]) -> Iterator[int]:
    """Handlers run when Python goes on with this: within the `try`, which they would not in a function's beginning."""
    while True:
        try:
            yield len(stopped)
        except GeneratorExit:
            return
        except BaseException as error:
            stopped.append(error)


def _suit(limits: Tensor, steps: int, keep: int) -> bool:
    """Everybody may say something, and nobody so much that room for it is asked for by mistake."""
    return int(limits.min()) >= 1 and steps <= STEPS and keep * len(limits) * steps <= ROOM


def _lengths(source: Tensor, real: Tensor | None) -> Tensor | None:
    """Of sources that begin at the left, none of them empty; else None."""
    if real is None:
        return torch.full((len(source),), source.shape[1], dtype=torch.int32)
    lengths = real.sum(1)
    begins = torch.equal(real, torch.arange(real.shape[1], device=real.device) < lengths[:, None])
    return _ints(lengths) if begins and int(lengths.min()) > 0 else None


def _begun(prefixes: Sequence[Sequence[int]] | None) -> Tensor:
    """(rows, T) padded with -1; without prefixes, nothing."""
    most = max(map(len, prefixes or [[]]))
    return torch.tensor([[*row, *[-1] * (most - len(row))] for row in prefixes or [[]]], dtype=torch.int32)


def _within(tokens: Tensor, words: nn.Embedding) -> bool:
    low, high = tokens.aminmax()
    return int(low) >= 0 and int(high) < words.num_embeddings


def _table(positions: Tensor) -> Tensor:
    return positions.detach().float().contiguous()


def _ints(t: Tensor) -> Tensor:
    return t.to("cpu", torch.int32).contiguous()
