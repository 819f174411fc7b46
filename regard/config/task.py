"""What is learnt, and how it is measured: one schema for each task."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from regard.config.base import Config
from regard.config.data import (
    DataConfig,
    DocumentsData,
    LabelledData,
    PairsData,
    QuestionsData,
    SeriesData,
    StreamData,
    TaggedData,
)

Counted: TypeAlias = Literal["every", "official", "last_word", "official_last_word"]


class TaskConfig(Config):
    """What is learnt, and how it is measured."""

    name: str = "rewrite"
    """rewrite, language, masked, classify, series, span or tag."""


class RewriteTask(TaskConfig):
    """A source is read, a target written."""

    name: Literal["rewrite"] = "rewrite"
    """Text in, other text out."""
    smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing: this much probability is spread evenly over the vocabulary."""
    bleu: Literal["13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab"] = "13a"
    """sacrebleu's tokenisation."""
    forcing: float = Field(1.0, ge=0, le=1)
    """Probability that a decoder in training hears the true word before, and not its own."""
    forcing_end: float | None = Field(None, ge=0, le=1)
    """Scheduled sampling: where that probability goes."""
    forcing_steps: int = Field(10_000, ge=1)
    """Batches until it is there."""
    forcing_decay: Literal["linear", "exponential", "sigmoid"] = "linear"
    free_running: bool = False
    """Also measures the perplexity of a decoder that hears itself."""
    reinforce: float = Field(1.0, ge=0)
    """Weight of the choices' gradient where attention is hard."""
    entropy: float = Field(0.01, ge=0)
    """Reward for choices that stay open."""


class LanguageTask(TaskConfig):
    """Each token follows from those before it."""

    name: Literal["language"] = "language"
    """Running text: the next token from those before it."""
    counted: Counted = "every"
    """What evaluation counts: every token but the first; "official": as the TCN's authors do, not the first
    data.context tokens of the text either, or of ten parts of it in words; or the last word of each line (LAMBADA);
    "official_last_word": as they do, who read the word too before they ask for it."""


class MaskedTask(TaskConfig):
    """Hidden tokens follow from all around them, and whether two segments belong together."""

    name: Literal["masked"] = "masked"
    """BERT's pre-training: hidden tokens, and whether one segment follows another."""
    share: float = Field(0.15, gt=0, lt=1)
    """Of the tokens that are to be guessed."""
    most: int = Field(0, ge=0)
    """At most so many of a sequence; 0: no limit."""
    whole_words: bool = False
    """All pieces of a word are hidden, or none."""
    copies: int = Field(0, ge=0)
    """Static masks: each epoch shows one of so many masked copies of the data. 0: masks are drawn anew every time."""
    next_sentence: bool = True
    """Two segments a sequence, and the question whether the second follows the first."""
    short: float = Field(0.1, ge=0, le=1)
    """Share of sequences of a random shorter length."""
    warm_length: int = Field(0, ge=0)
    """Sequences of this length for the first `warm_share` of the steps; 0: all are as long as data.longest."""
    warm_share: float = Field(0.9, ge=0, le=1)


class ClassifyTask(TaskConfig):
    """A text, or a pair, gets a label or a number."""

    name: Literal["classify"] = "classify"
    """Text in, a label or a number out."""
    kind: Literal["label", "number", "choice"] = "label"
    """One of several labels; a number; or which of several texts goes on best."""
    similar: bool = False
    """The two texts of a pair have no order: a GPT reads them in both, and adds what it has read."""
    measures: tuple[Literal["accuracy", "f1", "matthews", "pearson", "spearman"], ...] = ()
    """What is measured; accuracy of labels, Pearson and Spearman of numbers when left out."""
    auxiliary: float = Field(0.0, ge=0)
    """λ: weight of the language model's loss beside, for systems that write."""


class SeriesTask(TaskConfig):
    """Numbers come step by step, and something is to be said of them."""

    name: Literal["series"] = "series"
    """Numbers in; a number, a label or keys out, at the end or at each step."""
    kind: Literal["number", "label", "labels", "keys"] = "label"
    """A number or a label at the end; a label at each step; or which keys sound at the next step."""


class SpanTask(TaskConfig):
    """The answer to a question is a part of the passage."""

    name: Literal["span"] = "span"
    """A question and a passage in, the part of the passage that answers it out."""
    stride: int = Field(128, ge=1)
    """Tokens from the beginning of one window of a long passage to that of the next."""
    question: int = Field(64, ge=1)
    """Most tokens of a question; longer ones are cut."""
    answer: int = Field(30, ge=1)
    """Most tokens of an answer."""
    nbest: int = Field(20, ge=1)
    """Beginnings and ends to combine."""
    impossible: bool = False
    """Some questions have no answer (SQuAD 2.0)."""
    threshold: float = 0.0
    """No answer is given where its score beats the best answer's by more than this."""


class TagTask(TaskConfig):
    """Each word gets a tag."""

    name: Literal["tag"] = "tag"
    """Words in, a tag for each out."""
    scheme: Literal["iob1", "iob2", "plain"] = "iob2"
    """How entities are marked in the data; plain tags have none, and are counted one by one."""


# Which systems can do what.
SYSTEMS: dict[str, tuple[str, ...]] = {
    "rewrite": ("transformer", "seq2seq"),
    "language": ("gpt", "recurrent", "tcn"),
    "masked": ("bert",),
    "classify": ("bert", "gpt", "recurrent", "tcn"),
    "series": ("tcn", "recurrent", "gpt"),
    "span": ("bert",),
    "tag": ("bert",),
}
TASKS: dict[str, tuple[type[DataConfig], type[TaskConfig]]] = {
    "rewrite": (PairsData, RewriteTask),
    "language": (StreamData, LanguageTask),
    "masked": (DocumentsData, MaskedTask),
    "classify": (LabelledData, ClassifyTask),
    "series": (SeriesData, SeriesTask),
    "span": (QuestionsData, SpanTask),
    "tag": (TaggedData, TagTask),
}
