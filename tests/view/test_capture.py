from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from regard.core.state import reorder, repeat
from regard.core.watch import watch
from regard.errors import ConfigError, DataError, Diverged
from regard.models.transformer import Config, Transformer
from regard.view.capture import Trace, follow

Make = Callable[..., Trace]


def test_alignment_is_the_mean_of_the_heads_of_the_last_cross_attention(make: Make) -> None:
    trace = make()
    heads = trace.maps["decoder.1.cross"]
    assert np.allclose(trace.alignment(), sum(heads) / len(heads), atol=1e-7)
    assert np.allclose(trace.alignment().sum(1), 1, atol=1e-6)
    assert trace.alignment().shape == (len(trace.target), len(trace.source))


def test_a_mean_of_some_heads_is_theirs_alone(make: Make) -> None:
    trace = make()
    heads = trace.maps["decoder.0.cross"]
    assert np.array_equal(trace.mean("decoder.0.cross", [1]), heads[1])
    assert np.allclose(trace.mean("decoder.0.cross", [0, 2]), (heads[0] + heads[2]) / 2, atol=1e-7)


def test_each_kind_of_attention_has_its_own_axes(make: Make) -> None:
    trace = make()
    assert trace.axes("decoder.0.cross") == (trace.target, trace.source)
    assert trace.axes("encoder.0.attention") == (trace.source, trace.source)
    assert trace.axes("decoder.0.attention") == (trace.target, (trace.start, *trace.target[:-1]))


def test_json_keeps_everything_and_weights_to_four_decimals(make: Make) -> None:
    trace = make(["中文", "naïve", "\ud800", "<eos>"])
    written = json.dumps(trace.to_json(), allow_nan=False)
    back = Trace.from_json(json.loads(written))
    assert (back.source, back.target, back.title, back.score, back.caption) == (
        (trace.source, trace.target, trace.title, trace.score, trace.caption)
    )
    assert list(back.maps) == list(trace.maps)
    for name, weights in trace.maps.items():
        assert np.abs(back.maps[name] - weights).max() <= 0.5e-4 + 1e-7
        assert back.maps[name].dtype == np.float32
    assert json.dumps(back.to_json()) == written


def test_a_score_that_json_cannot_hold_is_left_out() -> None:
    trace = Trace(("a",), ("b",), {"decoder.0.cross": np.ones((1, 1, 1), np.float32)}, score=float("-inf"))
    assert trace.to_json()["score"] is None


def test_padding_is_cut_off(make: Make) -> None:
    trace = make()
    wide = {name: np.pad(weights, ((0, 0), (0, 2), (0, 3))) for name, weights in trace.maps.items()}
    cut = Trace(trace.source, trace.target, wide)
    for name, weights in trace.maps.items():
        assert np.array_equal(cut.maps[name], weights)


def test_a_hand_made_ancestry_is_followed() -> None:
    """Three hypotheses; the winner was in row 2, then 0, then 1. Each row's weights carry its own number."""

    def call(step: int, keys: int) -> torch.Tensor:
        return torch.stack([torch.full((2, 1, keys), 10.0 * step + row) for row in range(3)])

    seen = {
        "decoder.0.attention": [call(step, step + 1) for step in range(4)],
        "decoder.0.cross": [call(step, 5) for step in range(4)],
        "encoder.0.attention": [torch.arange(2.0)[:, None, None, None].expand(2, 2, 5, 5)],
        "decoder.9.cross": [],
    }
    maps = follow(seen, [2, 0, 1], sentence=1)
    assert maps["decoder.0.cross"].shape == (2, 3, 5)
    assert maps["decoder.0.cross"][0, :, 0].tolist() == [2, 10, 21]
    assert maps["decoder.0.attention"][1].tolist() == [[2, 0, 0], [10, 10, 0], [21, 21, 21]]
    assert (maps["encoder.0.attention"] == np.ones((2, 5, 5))).all()
    assert "decoder.9.cross" not in maps


def test_what_was_called_once_in_a_longer_search_belongs_to_the_sentence() -> None:
    seen = {"reader.attention": [torch.arange(4.0)[:, None, None, None].expand(4, 1, 3, 3)]}
    assert (follow(seen, [0, 0], sentence=3)["reader.attention"] == 3).all()


def test_following_a_search_is_reading_its_answer_at_once() -> None:
    """Two sentences, three hypotheses each that change places, a prompt of two tokens: as if the winner were given."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab": 20, "dim": 16, "heads": 2, "layers": 2, "hidden": 32}
    model = Transformer(Config(**sizes)).double().eval()
    source = torch.randint(4, 20, (2, 5))
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    places = [torch.tensor([0, 1, 2, 3, 3, 4]), torch.tensor([2, 2, 0, 5, 4, 3]), torch.tensor([1, 0, 0, 4, 4, 5])]
    with torch.no_grad(), watch(model) as seen:
        tokens = torch.randint(4, 20, (2, 2))
        _, state = model.step(tokens, model.start(source, real))
        said, state = tokens.repeat_interleave(3, 0), repeat(state, 3)
        for rows in places:
            new = torch.randint(4, 20, (6, 1))
            said = torch.cat([said[rows], new], 1)
            _, state = model.step(new, reorder(state, rows))
    for winner in range(3, 6):
        path = [winner]
        for rows in reversed(places[1:]):
            path.insert(0, int(rows[path[0]]))
        found = follow(seen, [1, *path], sentence=1)
        with torch.no_grad(), watch(model) as at_once:
            model(source[1:], real[1:], said[winner][None])
        assert found.keys() == at_once.keys()
        for name, (weights,) in at_once.items():
            assert_close(torch.from_numpy(found[name]), weights[0].float(), atol=1e-6, rtol=0)
        trace = Trace(tuple("abc"), tuple("uvwxy"), found)
        assert np.allclose(trace.alignment().sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([0, 0, 0], "was called 2 times, but the answer took 3; watch the whole search"),
        ([], "was called 2 times, but the answer took 0; watch the whole search"),
        ([0, 4], "no row 4 in a call of 4 rows; give the rows of the search that was watched"),
    ],
)
def test_rows_of_another_search_are_refused(rows: list[int], said: str) -> None:
    with pytest.raises(ConfigError, match=f"decoder.0.cross.*{said}"):
        follow({"decoder.0.cross": [torch.ones(4, 1, 1, 1)] * 2}, rows)


def test_names_and_heads_that_are_not_there_are_refused(make: Make) -> None:
    trace = make()
    with pytest.raises(ConfigError, match=r"no attention is named 'decoder.1.cros' .*did you mean 'decoder.1.cross'\?"):
        trace.mean("decoder.1.cros")
    with pytest.raises(ConfigError, match=r"decoder.1.cross has heads 0 to 2, but head 3 was asked for"):
        trace.mean(heads=[0, 3])
    with pytest.raises(ConfigError, match=r"decoder.1.cross has heads 0 to 2, but none was asked for"):
        trace.mean(heads=[])


def test_without_cross_attention_there_is_no_alignment(make: Make) -> None:
    trace = make(names=["decoder.0.attention"])
    assert trace.pick() == "decoder.0.attention"
    with pytest.raises(ConfigError, match=r"none of decoder.0.attention looks from target to source; say which"):
        trace.alignment()


def test_maps_that_do_not_fit_are_refused() -> None:
    def trace(weights: np.ndarray) -> Trace:
        return Trace(("a", "b"), ("c",), {"decoder.0.cross": weights})

    with pytest.raises(ConfigError, match=r"1 × 1 weights do not fit 1 × 2 tokens; give every token"):
        trace(np.ones((1, 1, 1)))
    with pytest.raises(ConfigError, match=r"1 × 3 weights do not fit 1 × 2 tokens"):
        trace(np.ones((1, 1, 3)))  # not padding: somebody looked there
    with pytest.raises(ConfigError, match=r"weights of shape \(1, 2\), but \(heads, queries, keys\) is wanted"):
        trace(np.ones((1, 2)))
    with pytest.raises(Diverged, match=r"decoder.0.cross: some weights are not numbers; the model has diverged"):
        trace(np.full((1, 1, 2), np.nan))
    with pytest.raises(ConfigError, match=r"nothing to show; watch at least one"):
        Trace(("a",), ("b",), {})


@pytest.mark.parametrize(
    "data", [{}, [], {"tokens": {}, "maps": {}}, {"tokens": 1, "maps": {"x": {"weights": [[1], 2]}}}]
)
def test_other_json_is_no_trace(data: object) -> None:
    with pytest.raises(DataError, match=r"not a trace \(.*\); write one with `regard look --json`"):
        Trace.from_json(data)  # type: ignore[arg-type]
