"""A language model small enough to know by heart: five words, and every word said before counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from regard.core.state import State

EOS, BOS, VOCAB, KEYS = 0, 1, 5, 4


class Toy:
    """Logits are a taste of the sentence plus a table for each word said; it also looks at four keys."""

    def __init__(self, sentences: int = 1, seed: int = 0, vocab: int = VOCAB) -> None:
        dice = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.taste = torch.randn(sentences, vocab, generator=dice, dtype=torch.float64)
        self.said = torch.randn(40, vocab, vocab, generator=dice, dtype=torch.float64)
        self.gaze = torch.randn(40, vocab, KEYS, generator=dice, dtype=torch.float64)
        self.rows: list[int] = []  # how many rows each step was asked for
        self.looked = torch.empty(0)  # (rows, KEYS) what the last step looked at

    def start(self, sentences: Iterable[int] | None = None) -> State:
        rows = list(range(len(self.taste)) if sentences is None else sentences)
        return State(memory=self.taste[rows], past=torch.empty(len(rows), 0, dtype=torch.long))

    def prompt(self, sentences: int | None = None) -> Tensor:
        return torch.full((len(self.taste) if sentences is None else sentences, 1), BOS)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        past = torch.cat([state.past, tokens], 1)
        self.rows.append(len(past))
        self.looked = sum(self.gaze[t, past[:, t]] for t in range(past.shape[1])).softmax(-1)  # type: ignore[union-attr]
        logits = sum(self.said[t, past[:, t]] for t in range(past.shape[1]))
        taste = state.memory.repeat_interleave(len(past) // len(state.memory), 0)
        return 0.7 * logits + taste, State(state.memory, past, past.shape[1])

    def logprobs(self, sentence: int, words: Iterable[int], prompt: Iterable[int] = (BOS,)) -> list[float]:
        """Of each word of the vocabulary, after these."""
        story = torch.tensor([[*prompt, *words]])
        logits, _ = Toy.step(self.twin(), story, self.start([sentence]))
        return logits.log_softmax(-1)[0].tolist()

    def logprob(self, sentence: int, words: tuple[int, ...], finished: bool) -> float:
        """Of a whole answer, its end mark included where it has one."""
        whole = (*words, EOS) if finished else words
        return math.fsum(self.logprobs(sentence, whole[:t])[word] for t, word in enumerate(whole))

    def every_answer(self, limit: int) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Whatever can be said within the limit: what ends by itself, and what is cut off."""
        others = [word for word in range(self.vocab) if word != EOS]
        for length in range(limit):
            yield from ((words, True) for words in itertools.product(others, repeat=length))
        yield from ((words, False) for words in itertools.product(others, repeat=limit))

    def twin(self) -> Toy:
        """The same, but what it notes down is its own."""
        twin = object.__new__(Toy)
        twin.__dict__.update(self.__dict__, rows=[])
        return twin
