"""What pipelines with one vocabulary have in common: vectors of texts, and what is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.core.autoregressive import Autoregressive
from regard.core.beside import dissect
from regard.core.watch import watch
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError
from regard.pipeline.base import Pipeline, Reply, several
from regard.tasks.classify import embed
from regard.view.capture import Trace, keep


class Asked(Pipeline):
    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizers.target

    def ask(self, texts: Sequence[str], *, embed: bool = False, pooling: str = "mean", **how: Any) -> list[Reply]:
        self.refuse_unknown(how)
        return self.vectors(texts, pooling) if embed else self.replies(texts, **how)

    def replies(self, texts: Sequence[str], **how: Any) -> list[Reply]:
        """What a person is shown for each text who does not ask for its vector."""
        raise TypeError(f"{type(self).__name__} must define replies")

    def embed(self, texts: str | Sequence[str], *, pooling: str = "mean", normalise: bool = True) -> Tensor:
        """A vector for each text, (texts, dim). What is longer than the model reads is cut off."""
        return embed(
            self.model, self.tokenizer, several(texts), longest=self.longest, pooling=pooling, normalise=normalise
        )  # fmt: skip

    def vectors(self, texts: Sequence[str], pooling: str = "mean") -> list[Reply]:
        """Likewise, as they are printed."""
        found = self.embed(texts, pooling=pooling).tolist()
        return [
            Reply(" ".join(f"{value:.6g}" for value in vector), {"source": text, "vector": vector}, vector[0])
            for text, vector in zip(texts, found, strict=True)
        ]

    @torch.inference_mode()
    def watched(self, ids: Sequence[int], read: Callable[[Tensor], Any], caption: str, answer: str) -> Trace:
        """What every attention looked at while one sequence was read. A system that writes looks back from each token,
        and in the end from its answer.
        """
        most: int | None = getattr(self.model, "longest", None)
        if most is not None and len(ids) > most:
            what = f"the text has {len(ids)} tokens with its marks"
            raise DataError(f"{what}, but this model reads at most {most} at once; look at a shorter one")
        with watch(self.model) as seen, dissect(self.model) as parts:
            read(torch.tensor([list(ids)], device=next(self.model.parameters()).device))
        maps = {name: calls[0][0].float().cpu().numpy() for name, calls in seen.items() if calls}
        tokens = tuple(self.tokenizer.tokens(ids))
        source, target = ((), (*tokens[1:], answer)) if isinstance(self.model, Autoregressive) else (tokens, ())
        given = max(len(target) - 1, 0)
        return Trace(
            source, target, maps, self.folder.name, caption=caption, given=given, start=tokens[0], parts=keep(parts)
        )  # fmt: skip
