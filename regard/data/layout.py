"""How texts are laid out for a system to read: its marks around them, and where it is asked what it has read.

A layout is a frame (how one sequence is made of one text or two) and an arrangement (which sequences an example takes):

                  encoder, BERT                  decoder, GPT
    one text      begin A end                    begin A extract
    a pair        begin A end B end              begin A delimiter B extract
    both orders   the pair, and the pair turned round: two sequences, whose summaries are added
    choices       a pair of what comes first and each way to go on: a sequence for each, which gets one score

Too long a pair is cut at the end of its longer text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from regard.data.tokenizer import Marks, Tokenizer
from regard.errors import ConfigError

Tokens: TypeAlias = Sequence[int]


class Reading(NamedTuple):
    """One sequence. `segments` tells the first text (0) from the second (1), `summary` where it is summed up."""

    tokens: list[int]
    segments: list[int]
    summary: int


Frame: TypeAlias = Callable[[Sequence[Tokens], Marks, int], Reading]


def for_encoder(texts: Sequence[Tokens], marks: Marks, longest: int) -> Reading:
    """Devlin et al. 2018: `begin A end B end`; summed up at its beginning, which has seen everything.

    Some put more between the two: `begin A end end B end` (RoBERTa, Liu et al. 2019).
    """
    between = (len(texts) - 1) * len(marks.between)
    tokens, segments = [marks.begin], [0]
    for number, text in enumerate(cut(texts, longest - 1 - len(texts) - between)):
        some = [*(marks.between if number else ()), *text, marks.end]
        tokens, segments = tokens + some, segments + [number] * len(some)
    return Reading(tokens, segments, 0)


def for_decoder(texts: Sequence[Tokens], marks: Marks, longest: int) -> Reading:
    """Radford et al. 2018: `begin A delimiter B extract`; summed up at its end, which alone has seen everything."""
    if marks.delimiter is None or marks.extract is None:
        name = "extract" if marks.extract is None else "delimiter"
        raise ConfigError(f"this vocabulary has no mark <{name}>, which a GPT needs to tell labels; add it first")
    first, *others = cut(texts, longest - 1 - len(texts))
    tokens = [marks.begin, *first]
    for text in others:
        tokens += [marks.delimiter, *text]
    tokens += [marks.extract]
    return Reading(tokens, [0] * len(tokens), len(tokens) - 1)


def cut(texts: Sequence[Tokens], room: int) -> list[Tokens]:
    """Their beginnings, so that all fit: token by token off the end of the longest, of equal ones the last."""
    lengths = [len(text) for text in texts]
    for _ in range(sum(lengths) - room):
        lengths[max(range(len(lengths)), key=lambda i: (lengths[i], i))] -= 1
    return [text[:length] for text, length in zip(texts, lengths, strict=True)]


Text = TypeVar("Text")


def once(texts: Sequence[Text]) -> list[Sequence[Text]]:
    return [texts]


def both_orders(texts: Sequence[Text]) -> list[Sequence[Text]]:
    return [texts, texts[::-1]]


def choices(texts: Sequence[Text]) -> list[Sequence[Text]]:
    first, *others = texts
    return [(first, other) for other in others]


Arrange: TypeAlias = Callable[[Sequence[Tokens]], list[Sequence[Tokens]]]


@dataclass(frozen=True)
class Layout:
    """What a system reads of an example: one sequence or several, each of at most `longest` tokens."""

    frame: Frame
    arrange: Arrange
    marks: Marks
    longest: int

    def __call__(self, texts: Sequence[Tokens]) -> list[Reading]:
        return [self.frame(some, self.marks, self.longest) for some in self.arrange(texts)]


def lay_out(tokenizer: Tokenizer, examples: Sequence[Sequence[str]], layout: Layout) -> list[list[Reading]]:
    """The sequences of many examples, each of which has one text or more."""
    coded = iter(tokenizer.encode_many(text.strip() for texts in examples for text in texts))
    return [layout([next(coded) for _ in texts]) for texts in examples]
