"""Text in, other text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.config import DataConfig, DecodeConfig, Split
from regard.config.data import PairsData
from regard.config.task import RewriteTask
from regard.core.autoregressive import Autoregressive
from regard.core.beside import dissect
from regard.core.watch import watch
from regard.data.text import kind
from regard.decode.record import Record
from regard.errors import ConfigError, DataError
from regard.pipeline.base import Pipeline, Progress, Reply, Say
from regard.pipeline.searched import listed, searched
from regard.prepare.rewrite import bleu_of, hold
from regard.tasks.rewrite import Answer, encode_sources, measure, rewrite, score_pairs
from regard.view.capture import Compared, Trace, follow, keep


@dataclass(frozen=True)
class Rewriter(Pipeline):
    model: Autoregressive

    takes = frozenset((*DecodeConfig.model_fields, "prefix"))

    def answers(self, texts: Sequence[Any], **how: Any) -> list[str]:
        """Texts; keywords as in the recipe's [decode]."""
        return [answer.texts[0] for answer in self.answer(texts, **how)]

    def answer(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        progress: Progress | None = None,
        record: Record | None = None,
        **how: Any,
    ) -> list[Answer]:
        """Answers with their n-best lists, scores and ancestries."""
        return rewrite(
            self.model, self.tokenizers, texts, self.decoding(**how),
            prefixes=prefixes, longest=self.longest, progress=progress, record=record,
        )  # fmt: skip

    def ask(self, texts: Sequence[str], *, prefix: str = "", **how: Any) -> list[Reply]:
        self.refuse_unknown(how)
        found = self.answer(texts, prefixes=[prefix] * len(texts) if prefix else None, **how)
        drawn = self.decoding(**how).sample
        return [_reply(answer, several="nbest" in how, drawn=drawn) for answer in found]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        """Log-probability of each token of given answers."""
        return score_pairs(self.model, self.tokenizers, pairs, longest=self.longest)

    def check(self, text: str, number: int = 1) -> None:
        encode_sources(self.tokenizers, [text], self.longest, first=number)

    def look(self, text: str, *, prefix: str = "", **how: Any) -> Trace:
        """What every attention looked at while the best answer was written, and what else the search weighed."""
        (ids,) = encode_sources(self.tokenizers, [text], self.longest)
        if ids == self.tokenizers.source.marks.source([]):
            raise DataError("the text to look at is empty; write a sentence, in quotes")
        if how.get("sample"):
            raise ConfigError("sample: what is looked at is searched for, and not drawn; leave it out")
        if prefix:
            how = {**how, "prefixes": [prefix]}
        written = self.tokenizers.target
        record = Record(written.marks.end)
        with watch(self.model) as seen:
            (answer,) = self.answer([text], record=record, **{**how, "sample": False})
        best = answer.hypotheses[0]
        ends = [written.marks.end] if best.finished else []
        return Trace(
            source=tuple(self.tokenizers.source.tokens(ids)),
            target=tuple(written.tokens([*best.tokens, *ends])),
            maps=follow(seen, best.rows),
            title=self.folder.name,
            score=best.score,
            caption=f"{text} → {answer.texts[0]}",
            start=written.tokens([written.marks.begin])[0],
            parts=self._compared(ids, [written.marks.begin, *best.tokens, *ends][:-1]),
            tree=searched(record, best, written),
        )

    @torch.inference_mode()
    def _compared(self, source: list[int], told: list[int]) -> dict[str, Compared]:
        """What every attention compared, had the answer been read at once: the same as while it was searched for."""
        device = next(self.model.parameters()).device
        with dissect(self.model) as parts:
            self.model(torch.tensor([source], device=device), None, torch.tensor([told], device=device))
        return keep(parts)

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        asked = dict(how)
        free = bool(asked.pop("free_running", False))
        recipe = self.recipe.model_copy(update={"decode": self.decoding(**asked)})
        task = recipe.task
        assert isinstance(task, RewriteTask)
        with TemporaryDirectory() as scratch:
            place = Path(scratch) if files else self.folder
            if files:
                recipe, split = recipe.model_copy(update={"data": _data_of(recipe.data, files)}), "test"
            held = hold(recipe, place, split, self.tokenizers, say)
            return measure(
                self.model, self.tokenizers, held, recipe.decode, bleu_of(recipe),
                free_running=free or task.free_running, tokens=recipe.train.tokens, progress=progress,
            )  # fmt: skip


PIPELINE = Rewriter


def load_rewriter(folder: str | Path, *, device: str = "auto", arithmetic: str = "fp32") -> Rewriter:
    """A run of this task; any other is refused."""
    from regard.pipeline import load

    pipeline = load(folder, device=device, arithmetic=arithmetic)
    if not isinstance(pipeline, Rewriter):
        raise ConfigError(f"{folder} has the task {pipeline.recipe.task.name!r}; wanted is a run that rewrites")
    return pipeline


def _reply(answer: Answer, *, several: bool, drawn: bool) -> Reply:
    found = listed(answer, drawn=drawn)
    text = "\n".join(f"{one['score']:.4f}\t{one['text']}" for one in found) if several else answer.texts[0]
    return Reply(text, {"source": answer.source, "answers": found}, answer.hypotheses[0].score)


def _data_of(data: DataConfig, files: Sequence[str]) -> PairsData:
    """The run's way of reading, on other files."""
    assert isinstance(data, PairsData)
    alone = len(files) == 1
    jsonl = alone and kind(Path(files[0])) == ".jsonl"
    return PairsData(
        train=tuple(files), test=tuple(files), bad_lines=data.bad_lines,
        fields=data.fields if alone else None, turns=data.turns if jsonl else None,
    )  # fmt: skip
