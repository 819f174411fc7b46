"""The tree of a search: each candidate has its parent, sums add up, and what became of it is what the search did."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard.core.state import State
from regard.decode import beam, greedy
from regard.decode.record import ROOT, Record
from regard.decode.search import wu

EOS, WORDS, LIMIT = 0, 12, 7
TABLE = torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(3)) * 1.5


def step(tokens: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
    """A Markov chain: what follows depends on the last word."""
    return TABLE[tokens[:, -1]], state


def searched(**how: Any) -> tuple[Record, list[Any]]:
    record = Record(EOS)
    record.penalty = wu(0.6)
    prompt = torch.tensor([[3]])
    how = {"penalty": record.penalty, "limit": LIMIT, **how}
    (found,) = beam(step, State(past=torch.zeros(1)), prompt, eos=EOS, tell=record, **how)
    record.close()
    return record, found


@pytest.mark.parametrize("keep", [1, 3, 5])
def test_sums_add_up_along_each_path(keep: int) -> None:
    record, _ = searched(keep=keep)
    logs = TABLE.log_softmax(-1)
    for node in record.nodes:
        before = record.nodes[node.parent] if node.parent != ROOT else None
        assert node.step == (0 if before is None else before.step + 1)
        assert before is None or before.fate == "kept"
        said = 3 if before is None else before.token
        assert node.logprob == pytest.approx(float(logs[said, node.token]), abs=1e-5)
        assert node.total == pytest.approx(node.logprob + (0 if before is None else before.total), abs=1e-5)
        assert node.score == pytest.approx(node.total / wu(0.6)(node.step + 1))


@pytest.mark.parametrize("keep", [1, 3, 5])
def test_the_best_go_on_and_the_others_are_dropped(keep: int) -> None:
    record, _ = searched(keep=keep)
    for when in range(record.step):
        here = [node for node in record.nodes if node.step == when]
        stayed = [node.total for node in here if node.fate in ("kept", "left")]
        dropped = [node.total for node in here if node.fate == "pruned" and node.token != EOS]
        assert len(stayed) <= keep
        assert max(dropped, default=-math.inf) <= min(stayed)
        assert all(node.token == EOS for node in here if node.fate == "finished")


@pytest.mark.parametrize("keep", [1, 3, 5])
def test_answers_are_paths_of_the_tree(keep: int) -> None:
    record, found = searched(keep=keep)
    for hypothesis in found:
        path = record.path(hypothesis)
        words = [record.nodes[i].token for i in path]
        assert tuple(words[: len(hypothesis.tokens)]) == hypothesis.tokens
        assert record.nodes[path[-1]].total == pytest.approx(hypothesis.logprob)
        assert record.nodes[path[-1]].score == pytest.approx(hypothesis.score)
        assert (record.nodes[path[-1]].fate == "finished") == hypothesis.finished


def test_whoever_records_changes_nothing() -> None:
    _, told = searched(keep=3, expand=8)
    (untold,) = beam(
        step, State(past=torch.zeros(1)), torch.tensor([[3]]), eos=EOS, limit=LIMIT, keep=3, penalty=wu(0.6)
    )
    assert [(h.tokens, h.score, h.rows) for h in told] == [(h.tokens, h.score, h.rows) for h in untold]


def test_a_beam_of_one_that_is_recorded_is_greedy() -> None:
    _, (best,) = searched(keep=1, expand=4, penalty=lambda length: 1.0)
    (plain,) = greedy(step, State(past=torch.zeros(1)), torch.tensor([[3]]), eos=EOS, limit=LIMIT)
    assert (best.tokens, best.finished) == (plain.tokens, plain.finished)
    assert best.score == pytest.approx(plain.score)


def test_a_prefix_leaves_one_candidate() -> None:
    record, _ = searched(keep=3, prefixes=[[5, 7]])
    assert [node.token for node in record.nodes if node.step < 2] == [5, 7]
