"""A sentence in, a tag for each of its words out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.config import Split
from regard.config.data import TaggedData
from regard.config.task import TagTask
from regard.pipeline.asked import Asked
from regard.pipeline.base import Progress, Reply, Say
from regard.prepare.tag import words
from regard.tasks.tag import Tagged, measure, tag
from regard.view.capture import Trace


@dataclass(frozen=True)
class Tagger(Asked):
    takes = frozenset(("embed", "pooling"))

    @property
    def settings(self) -> TagTask:
        assert isinstance(self.recipe.task, TagTask)
        return self.recipe.task

    def answers(self, texts: Sequence[Any], **how: Any) -> list[Tagged]:
        """Of running text, or of lists of words."""
        self.refuse_decoding(how)
        assert isinstance(self.recipe.data, TaggedData)
        labels = self.recipe.data.labels
        return tag(self.model, self.tokenizer, texts, labels, self.settings, longest=self.longest)

    def parts(self, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    def replies(self, texts: Sequence[str], **how: Any) -> list[Reply]:
        return [_reply(text, found) for text, found in zip(texts, self.answers(texts, **how), strict=True)]

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the text was read."""
        self.refuse_decoding(how)
        marks = self.tokenizer.marks
        ids = [marks.begin, *self.tokenizer.encode(text.strip()), marks.end]
        (reply,) = self.ask([text])
        return self.watched(ids, self.model, reply.text, "")

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        self.refuse_decoding(how)
        with self.place(split, files) as (recipe, folder, which):
            held = words(recipe, folder, which, self.tokenizer, say)
            marks, tokens = self.tokenizer.marks, recipe.train.tokens
            return measure(self.model, held, marks, self.settings, tokens=tokens, progress=progress)


PIPELINE = Tagger


def _reply(source: str, found: Tagged) -> Reply:
    text = " ".join(f"{word}/{name}" for word, name in zip(found.words, found.tags, strict=True))
    told = {"words": found.words, "tags": found.tags, "entities": [asdict(entity) for entity in found.entities]}
    return Reply(text, {"source": source, **told}, 0.0)
