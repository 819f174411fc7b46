"""A run is measured by where it looks while it writes the true answer: no error for one that knows, much for others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
import tiny
import torch

import regard
from regard.alignment import look, measure_alignment, spans
from regard.data.aligned import Aligned, aligned
from regard.data.tokenizer import BOS, EOS, Kind, Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics.alignment import links
from regard.pipeline.rewrite import Rewriter
from regard.view.capture import Trace

PHRASES = list(aligned(("en", "de"), "test", 12))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Rewriter:
    return regard.load(tiny.train(tmp_path_factory.mktemp("run") / "run"))


@dataclass(frozen=True)
class Knowing(Rewriter):
    """Looks at what its own tokens mean, or so many tokens beside it."""

    beside: int = 0

    def look(self, text: str, **how: Any) -> Trace:
        phrase = next(phrase for phrase in PHRASES if phrase.source == text)
        source, target = spans(self.tokenizers.source, text), spans(self.tokenizers.target, phrase.target)
        weights = np.zeros((1, len(target) + 1, len(source) + 1), np.float32)
        for (_, end), (start, stop), _ in phrase.links:
            last = max(i for i, token in enumerate(source) if token[0] < end)
            rows = [j for j, token in enumerate(target) if token[0] < stop and start < token[1]]
            weights[:, rows, (last + self.beside) % len(source)] += 1
        weights[:, -1] = weights[:, :, -1] = 9  # the marks of the end are nobody's business
        return Trace(("s",) * (len(source) + 1), ("t",) * (len(target) + 1), {"cross": weights})


def test_who_knows_makes_hardly_an_error_and_who_looks_beside_it_many(pipeline: Rewriter) -> None:
    fields = pipeline.recipe, pipeline.model, pipeline.tokenizers, pipeline.folder
    right, wrong = (measure_alignment(Knowing(*fields, beside), len(PHRASES)) for beside in (0, 7))
    assert right < 0.05
    assert wrong > 0.5


@pytest.mark.parametrize("phrase", PHRASES[:4], ids=lambda phrase: phrase.source)
def test_it_looks_as_the_model_does_when_it_is_told_the_answer(pipeline: Rewriter, phrase: Aligned) -> None:
    tokenizers, name = pipeline.tokenizers, "decoder.0.cross"
    source = torch.tensor([[*tokenizers.source.encode(phrase.source), EOS]])
    target = torch.tensor([[BOS, *tokenizers.target.encode(phrase.target)]])
    with torch.inference_mode(), regard.watch(pipeline.model, name) as seen:
        pipeline.model(source, None, target)
    weights = seen[name][0][0].mean(0)[:-1, :-1].numpy()
    letters = spans(tokenizers.source, phrase.source), spans(tokenizers.target, phrase.target)
    assert look(pipeline, phrase) == look(pipeline, phrase, name) == links(weights, *letters, phrase.links)


def test_the_measure_tells_its_definition(pipeline: Rewriter) -> None:
    last, named = (measure_alignment(pipeline, 3, attention) for attention in (None, "decoder.0.cross"))
    assert last == named
    assert last.definition.endswith("over 3 sentences; mean of the heads of the last cross-attention, answers forced")
    assert named.definition.endswith("mean of the heads of decoder.0.cross, answers forced")


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("text", ["neunzehnter März zwölfhundertdreißig", "six fifty-two p.m."])
def test_tokens_say_every_letter_and_no_space_alone(kind: Kind, text: str) -> None:
    tokenizer = Tokenizer.train([text, "sixty März"], kind=kind, size=290)
    found = spans(tokenizer, text)
    assert len(found) == len(tokenizer.encode(text))
    said = {place for span in found for place in range(*span)}
    assert {place for place, letter in enumerate(text) if letter != " "} <= said
    assert all(text[slice(*span)].strip() for span in found if span[0] < span[1])


def test_what_cannot_be_measured(pipeline: Rewriter) -> None:
    data = pipeline.recipe.data.model_copy(update={"made": None})
    other = replace(pipeline, recipe=pipeline.recipe.model_copy(update={"data": data}))
    with pytest.raises(
        ConfigError, match='an alignment is known of the made task alone; train a recipe with made = "spo'
    ):
        measure_alignment(other)
    with pytest.raises(
        ConfigError, match=r"encoder\.0\.attention does not look from .*; name one of decoder\.0\.cross$"
    ):
        measure_alignment(pipeline, 1, "encoder.0.attention")
    with pytest.raises(ConfigError, match=r"no attention is named 'decoder\.0\.cros' in this trace; did you mean"):
        measure_alignment(pipeline, 1, "decoder.0.cros")
    with pytest.raises(DataError, match="0 sentences without a single link; give sentences of which an alignment is"):
        measure_alignment(pipeline, 0)
