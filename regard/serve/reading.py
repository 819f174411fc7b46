"""Texts that are read in one go: labels, tags, spans, masks, ranked choices, vectors. Requests that are alike are read
together, batched by length; once nobody waits for them, reading stops."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.errors import ConfigError, DataError
from regard.pipeline.asked import Asked
from regard.pipeline.base import Pipeline
from regard.serve.queue import Heed, Reading, Ticket
from regard.serve.refusal import Refusal

MOST_TOKENS = 1 << 15  # that one request may have read


def asking(pipeline: Pipeline, ticket: Ticket, texts: Sequence[str], how: dict[str, Any]) -> Reading:
    """As `regard predict` does it."""
    count(pipeline, texts)
    if not how.get("embed"):  # any text has a vector
        for number, text in enumerate(texts, 1):
            pipeline.check(text, number)

    def read(some: Sequence[str], heed: Heed) -> list[dict[str, Any]]:
        with heeding(pipeline.model, heed):
            return [reply.json for reply in pipeline.ask(some, **how)]

    return Reading(ticket, texts, read, ("ask", json.dumps(how, sort_keys=True)))


def embedding(pipeline: Pipeline, ticket: Ticket, texts: Sequence[str], pooling: str) -> tuple[Reading, int]:
    """Vectors, and how many tokens are read for them."""
    if not isinstance(pipeline, Asked):
        what = f"a {pipeline.recipe.system} with the task {pipeline.recipe.task.name!r}"
        raise ConfigError(f"{what} has no vector of a text; ask it by /v1/predict")
    lengths = count(pipeline, texts)
    for number, length in enumerate(lengths, 1):
        if length > pipeline.longest:
            what = f"input {number} has {length} tokens with its marks, but this model reads at most {pipeline.longest}"
            raise DataError(f"{what}; split it")

    def read(some: Sequence[str], heed: Heed) -> list[list[float]]:
        with torch.inference_mode(), heeding(pipeline.model, heed):
            found: list[list[float]] = pipeline.embed(some, pooling=pooling).tolist()
        return found

    return Reading(ticket, texts, read, ("embed", pooling)), sum(lengths)


@contextmanager
def heeding(model: nn.Module, heed: Heed) -> Iterator[None]:
    """Each part of the model asks before it begins: so a decode stops between two words, and a long text between two
    layers."""
    hooks = [part.register_forward_pre_hook(lambda *_: heed()) for part in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def count(pipeline: Pipeline, texts: Sequence[str]) -> list[int]:
    """Tokens of each text with its marks. Much of it would keep everybody waiting, and is refused."""
    lengths = pipeline.count(texts)
    if sum(lengths) > MOST_TOKENS:
        what = f"the inputs have {sum(lengths):,} tokens in all, and {MOST_TOKENS:,} may be read at once"
        raise Refusal(422, "too_long", f"{what}; send them in parts")
    return lengths
