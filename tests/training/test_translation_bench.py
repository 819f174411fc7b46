"""The race of training takes each peer at the size of batches that suits it."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

pytest.importorskip("transformers")

from bench import step, train_translation


def test_the_size_with_most_tokens_a_second_is_taken_whatever_compiling_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def learn(feed: object) -> int:
        nonlocal now
        tokens, seconds = next(feed)
        now += seconds
        return tokens

    monkeypatch.setattr(step, "clock", lambda: now)
    feeds = {4: repeat((4, 1.0)), 8: chain([(12, 60.0)], repeat((12, 1.0))), 16: repeat((16, 2.0))}
    assert train_translation._quickest(learn, feeds, warm=1, least=1.0) == 8


def test_one_size_alone_is_not_tried() -> None:
    assert train_translation._quickest(pytest.fail, {4: iter(())}, warm=1, least=1.0) == 4
