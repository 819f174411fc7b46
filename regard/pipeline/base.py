"""What every pipeline can do, whatever its task: be called with text, be asked, be measured, be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, overload

from torch import nn

from regard.config import DecodeConfig, Recipe, Split
from regard.data.tokenizer import Tokenizers
from regard.errors import ConfigError, nearest
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
        answers = self.answers([text] if isinstance(text, str) else list(text), **how)
        return answers[0] if isinstance(text, str) else answers

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

    def check(self, text: str, number: int = 1) -> None:
        """Refuses a text that cannot be answered, as input so-and-so."""

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

    def decoding(self, **how: Any) -> DecodeConfig:
        """The recipe's [decode] with some settings changed. One that would have no effect is refused, not ignored."""
        config = DecodeConfig(**{**self.recipe.decode.model_dump(), **how})
        for name in how:
            if name in ("temperature", "top_k", "top_p", "min_p") and not config.sample:
                raise ConfigError(f"{name}: only sampling uses it; add sample (--sample), or leave it out")
            if name in ("beam", "expand", "penalty", "alpha", "coverage") and config.sample:
                raise ConfigError(f"{name}: sampling has no use for it; add --sample false, or leave it out")
        return config
