"""What every pipeline can do, whatever its task: be called with text, be asked, be measured, be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, overload

import torch
from torch import nn

from regard.config import DecodeConfig, Recipe, Split
from regard.data.tokenizer import Tokenizers
from regard.errors import ConfigError, DataError, nearest
from regard.view.capture import Trace

Say = Callable[[str], None]
Progress = Callable[[int, int], None]  # done, of how many


@dataclass(frozen=True)
class Reply:
    """An answer as it is printed, as JSON, and how sure the model is of it."""

    text: str
    json: dict[str, Any]
    score: float


@dataclass(frozen=True)
class Pipeline:
    """A model with its tokenizers and its recipe. Call it with text."""

    recipe: Recipe
    model: nn.Module
    tokenizers: Tokenizers
    folder: Path

    takes: ClassVar[frozenset[str]] = frozenset()
    """Settings of `ask`."""

    @overload
    def __call__(self, text: str, **how: Any) -> Any: ...
    @overload
    def __call__(self, text: Sequence[Any], **how: Any) -> list[Any]: ...
    def __call__(self, text: str | Sequence[Any], **how: Any) -> Any:
        """The answer to a text, or the list of answers to several."""
        if not isinstance(text, Iterable):
            raise DataError(f"{text!r} came, where an input or a list of inputs was wanted; put a text in quotes")
        inputs = [text] if isinstance(text, str) else list(text)
        for number, given in enumerate(inputs, 1):
            parts = self.parts(given)
            if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
                raise DataError(f"input {number} is {repr(given)[:60]}, where text was wanted; put it in quotes")
        answers = self.answers(inputs, **how)
        return answers[0] if isinstance(text, str) else answers

    def parts(self, given: Any) -> Any:
        """The texts that one input has."""
        return [given]

    def answers(self, texts: Sequence[Any], **how: Any) -> list[Any]:
        """What a caller gets for each text."""
        raise TypeError(f"{type(self).__name__} must define answers")

    def ask(self, texts: Sequence[str], **how: Any) -> list[Reply]:
        """What a person is shown for each text."""
        raise TypeError(f"{type(self).__name__} must define ask")

    def pieces(self, text: str, **how: Any) -> Iterator[str]:
        """The same, piece by piece where it can be told while it is written."""
        yield self.ask([text], **how)[0].text

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        """The task's metrics on a split of the run, or on other files."""
        raise TypeError(f"{type(self).__name__} must define measure")

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while it answered."""
        raise TypeError(f"{type(self).__name__} must define look")

    def example(self, text: str) -> str:
        """Some text in the form in which this task is asked."""
        return text

    def draw(self, tokens: int, dice: torch.Generator) -> str:
        """Likewise of so many random tokens."""
        source = self.tokenizers.source
        known = sorted(set(source.inner.get_vocab().values()) - source.special - {source.marks.unknown})
        drawn = torch.randint(len(known), (tokens,), generator=dice).tolist()
        return self.example(source.decode(known[i] for i in drawn))

    def check(self, text: str, number: int = 1) -> None:
        """Refuses a text that cannot be answered, as input so-and-so."""

    def inputs(self, path: Path) -> Iterator[str]:
        """The inputs of a file that is no text, one by one."""
        task = self.recipe.task.name
        raise ConfigError(f"input: the task {task!r} reads text; write its lines to standard input: < {path}")

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text with its marks."""
        return [len(ids) + 2 for ids in self.tokenizers.source.encode_many([text.strip() for text in texts])]

    @property
    def longest(self) -> int:
        """Most tokens of an input, its marks included."""
        return self.recipe.data.longest

    def refuse_unknown(self, how: Mapping[str, Any]) -> None:
        """A setting that would have no effect is refused, not ignored."""
        for name in how:
            if name not in self.takes:
                what = f"a {self.recipe.system} with the task {self.recipe.task.name!r} takes no such setting"
                hint = nearest(name, self.takes) if self.takes else "leave it out"
                raise ConfigError(f"{name}: {what}; {hint}")

    def refuse_decoding(self, how: Mapping[str, Any]) -> None:
        for name in how:
            task = self.recipe.task.name
            if name in DecodeConfig.model_fields:
                raise ConfigError(f"{name}: nothing is decoded to measure the task {task!r}; leave it out")
            raise ConfigError(f"{name}: the task {task!r} has no such setting here; leave it out")

    @contextmanager
    def place(self, split: Split, files: Sequence[str]) -> Iterator[tuple[Recipe, Path, Split]]:
        """Where a split is to be found: in the run, or of other files in a scratch folder."""
        if not files:
            yield self.recipe, self.folder, split
            return
        made = {"made": None} if "made" in type(self.recipe.data).model_fields else {}
        data = self.recipe.data.model_copy(update={"test": tuple(files), **made})
        with TemporaryDirectory() as scratch:
            yield self.recipe.model_copy(update={"data": data}), Path(scratch), "test"

    def decoding(self, **how: Any) -> DecodeConfig:
        """The recipe's [decode] with some settings changed. One that would have no effect is refused, not ignored."""
        config = DecodeConfig(**{**self.recipe.decode.model_dump(), **how})
        for name in how:
            if name in ("temperature", "top_k", "top_p", "min_p") and not config.sample:
                mend = "add sample = true (on a command line --sample), or leave it out"
                raise ConfigError(f"{name}: only sampling uses it; {mend}")
            if name in ("beam", "expand", "penalty", "alpha", "coverage") and config.sample:
                mend = "add sample = false (on a command line --sample false), or leave it out"
                raise ConfigError(f"{name}: sampling has no use for it; {mend}")
        return config


def several(texts: str | Sequence[str]) -> list[str]:
    """Of a text alone, a list of one; its letters are not meant."""
    return [texts] if isinstance(texts, str) else [*texts]
