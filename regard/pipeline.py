"""Text → tokens → batch → model → decode → text: a trained run, ready to be asked. `regard.load` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from regard.config import FORMAT, DecodeConfig, Recipe, make_recipe, read_toml
from regard.core.autoregressive import Autoregressive
from regard.core.linear import pack
from regard.core.watch import watch
from regard.data.tokenizer import EOS, Tokenizers
from regard.device import find_device
from regard.errors import CheckpointError, ConfigError, DataError
from regard.models import build, schema
from regard.tasks.rewrite import Answer, Progress, encode_sources, rewrite, score_pairs
from regard.view.capture import Trace, follow
from regard.weights import read_weights


@dataclass(frozen=True)
class Pipeline:
    """A model with its tokenizers and its recipe. Call it with text."""

    recipe: Recipe
    model: Autoregressive
    tokenizers: Tokenizers
    folder: Path

    @overload
    def __call__(self, text: str, **how: Any) -> str: ...
    @overload
    def __call__(self, text: Sequence[str], **how: Any) -> list[str]: ...
    def __call__(self, text: str | Sequence[str], **how: Any) -> str | list[str]:
        """The answer to a text, or the list of answers to several; keywords as in the recipe's [decode]."""
        answers = self.answer([text] if isinstance(text, str) else list(text), **how)
        best = [answer.texts[0] for answer in answers]
        return best[0] if isinstance(text, str) else best

    def answer(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        progress: Progress | None = None,
        **how: Any,
    ) -> list[Answer]:
        """Answers with their n-best lists, scores and ancestries."""
        return rewrite(
            self.model, self.tokenizers, texts, self.decoding(**how),
            prefixes=prefixes, longest=self.longest, progress=progress,
        )  # fmt: skip

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        """Log-probability of each token of given answers."""
        return score_pairs(self.model, self.tokenizers, pairs, longest=self.longest)

    def check(self, text: str, number: int = 1) -> None:
        """Refuses a text that is too long for the model, as input so-and-so."""
        encode_sources(self.tokenizers, [text], self.longest, first=number)

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the best answer was written."""
        (ids,) = encode_sources(self.tokenizers, [text], self.longest)
        if ids == [EOS]:
            raise DataError("the text to look at is empty; write a sentence, in quotes")
        with watch(self.model) as seen:
            (answer,) = self.answer([text], **{**how, "sample": False})
        best = answer.hypotheses[0]
        target = [*self.tokenizers.target.tokens(best.tokens), *(["<eos>"] if best.finished else [])]
        return Trace(
            source=(*self.tokenizers.source.tokens(ids[:-1]), "<eos>"),
            target=tuple(target),
            maps=follow(seen, best.rows),
            title=self.folder.name,
            score=best.score,
            caption=f"{text} → {answer.texts[0]}",
        )

    @property
    def longest(self) -> int:
        """Most tokens of an input, its end mark included."""
        return self.recipe.data.longest

    def decoding(self, **how: Any) -> DecodeConfig:
        """The recipe's [decode] with some settings changed. One that would have no effect is refused, not ignored."""
        config = DecodeConfig(**{**self.recipe.decode.model_dump(), **how})
        idle = [name for name in ("temperature", "top_k", "top_p", "min_p") if name in how]
        if idle and not config.sample:
            raise ConfigError(f"{idle[0]}: only sampling uses it; add sample (--sample), or leave it out")
        return config


def load(folder: str | Path, *, device: str = "auto") -> Pipeline:
    """A trained run, ready to be asked."""
    folder = Path(folder)
    recipe = read_run(folder)
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise CheckpointError(f"{folder} has no model.safetensors yet; finish it with: regard resume {folder}")
    tokenizers = Tokenizers.load(folder)
    check_vocabulary(recipe, tokenizers)
    model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    read_weights(weights, model)
    assert isinstance(model, Autoregressive)
    return Pipeline(recipe, pack(model.to(find_device(device)).eval()), tokenizers, folder)


def read_run(folder: Path) -> Recipe:
    """The recipe of a run folder, of a version that this Regard can read."""
    if not (folder / "recipe.toml").exists():
        what = "no such folder" if not folder.exists() else "not a run folder: it has no recipe.toml"
        raise CheckpointError(f"{folder}: {what}; runs are made by: regard train RECIPE --out {folder}")
    try:
        values = read_toml(folder / "recipe.toml")
        if (found := values.get("format")) != FORMAT:
            raise CheckpointError(
                f"{folder} has run format {found}, but this Regard reads format {FORMAT}; "
                "use the Regard that wrote it, or train it again"
            )
        return make_recipe(values, schema)
    except ConfigError as error:
        raise CheckpointError(f"{folder} has a recipe.toml that cannot be used: {error}") from None


def check_vocabulary(recipe: Recipe, tokenizers: Tokenizers) -> None:
    """The files of a run fit together."""
    vocab, source_vocab = recipe.model.vocab, recipe.model.source_vocab  # type: ignore[attr-defined]
    for side, wanted, found in (
        ("target", vocab, tokenizers.target.size),
        ("source", source_vocab or vocab, tokenizers.source.size),
    ):
        if wanted != found:
            raise CheckpointError(
                f"the model was built for a {side} vocabulary of {wanted}, but its tokenizer has {found} entries; "
                "they belong to different runs"
            )
