"""What may be said next: with a table of log-probabilities and without."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from regard.decode import filters
from regard.decode.chances import FEW, Chances, likeliest
from regard.decode.filters import NEVER, Filter, chain

EOS = 2
FILTERS: dict[str, Filter] = {
    "at_least": filters.at_least(9, EOS),
    "never": filters.never(0, 1),
    "no_repeat": filters.no_repeat(2),
    "top_k": filters.top_k(4),
    "top_p": filters.top_p(0.7),
    "min_p": filters.min_p(0.2),
    "temperature": filters.temperature(2.0),
}


def bend(name: str, scores: Tensor) -> Tensor:
    story = torch.tensor([[3, 4, 3], [5, 6, 5], [-1, 7, 8]])
    return chain((FILTERS[name],), scores, story)


def without_a_table(logits: Tensor, bent: Tensor, k: int) -> tuple[Tensor, Tensor]:
    best, words = bent.topk(k)
    return best - logits.logsumexp(-1, keepdim=True), words


@pytest.mark.parametrize("name", FILTERS)
def test_filters_that_do_not_scale_need_no_table(name: str) -> None:
    logits = torch.randn(3, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(2)
    table = Chances(logits, partial(bend, name))
    quick = Chances(logits, partial(bend, name), without_a_table)
    (best, words), (found, others) = table.likeliest(5), quick.likeliest(5)
    there = best > NEVER
    same = torch.equal(there, found > NEVER) and torch.allclose(best[there], found[there])
    assert same != filters.scaling(FILTERS[name])
    assert torch.equal(words[there], others[there])


def test_there_may_be_fewer_words_than_are_asked_for() -> None:
    logits = torch.randn(2, 3)
    for chances in (Chances(logits, lambda z: z), Chances(logits, lambda z: z, without_a_table)):
        best, words = chances.likeliest(5)
        assert best.shape == words.shape == (2, 3)
    many = torch.randn(2, 40)
    best, words = Chances(many, lambda z: z, without_a_table).likeliest(FEW + 1)
    assert torch.allclose(best, many.log_softmax(-1).topk(FEW + 1).values)
    assert likeliest(logits, 2)[1].tolist() == logits.topk(2).indices.tolist()
