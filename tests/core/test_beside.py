"""Standing beside an attention: what is kept explains its weights, and where it is told to look, it looks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from regard.core.beside import dissect, steer
from regard.core.score import SCORES
from regard.core.watch import watch
from regard.errors import ConfigError
from regard.models import seq2seq
from regard.models.transformer import Config, Transformer

SIZES: dict[str, Any] = {"vocab": 20, "dim": 16, "heads": 2, "layers": 2, "hidden": 32}


def transformer(**how: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(Config(**{**SIZES, **how})).eval()


def recurrent(**how: Any) -> seq2seq.Seq2Seq:
    torch.manual_seed(0)
    return seq2seq.Seq2Seq(seq2seq.Config(vocab=20, dim=8, embedding=8, merge="sum", **how)).eval()


def read(model: Any, source: int = 6, target: int = 5) -> tuple[dict[str, Any], dict[str, Any]]:
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randint(4, 20, (1, n), generator=draw) for n in (source, target))
    with torch.no_grad(), watch(model) as seen, dissect(model) as parts:
        model(x, None, y)
    return seen, {name: part.read() for name, part in parts.items()}


def weights_of(part: Any) -> torch.Tensor:
    scores = part.scores if part.scale is None else part.scale * part.q @ part.k.transpose(-2, -1)
    hidden = torch.zeros(1, dtype=torch.bool) if part.seen is None else ~part.seen
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "general", "additive", "concat", "mlp", "cosine", "location"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_parts_of_a_transformer_explain_its_weights(score: str, packed: bool) -> None:
    model = transformer(score=score)
    if packed:
        for part in model.modules():
            if hasattr(part, "pack"):
                part.pack()
    seen, parts = read(model)
    assert parts.keys() == seen.keys()
    for name, calls in seen.items():
        assert_close(weights_of(parts[name]), torch.cat([call[0] for call in calls], -2), atol=1e-5, rtol=0)
        assert (parts[name].scale is None) == (score in ("additive", "concat", "mlp", "location"))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("decoder", ["bahdanau", "luong"])
def test_the_parts_of_a_recurrent_decoder_explain_its_weights(score: str, decoder: str) -> None:
    """It looks a word at a time: the queries of all calls are joined."""
    seen, parts = read(recurrent(decoder=decoder, score=score))
    (name,) = seen
    assert parts[name].q.shape[1] == 5
    assert_close(weights_of(parts[name]), torch.cat([call[0] for call in seen[name]], -2), atol=1e-5, rtol=0)


def test_a_window_is_kept_as_what_could_be_seen() -> None:
    seen, parts = read(recurrent(window="local-m", reach=1))
    (name,) = seen
    hidden = ~parts[name].seen.expand(1, 5, 6)
    assert hidden.any()
    assert_close(weights_of(parts[name]), torch.cat([call[0] for call in seen[name]], -2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", [transformer(), recurrent(), recurrent(decoder="luong", score="general")])
@pytest.mark.parametrize("stepwise", [False, True])
def test_whoever_is_steered_looks_there_and_nobody_else(model: Any, stepwise: bool) -> None:
    source, target = torch.randint(4, 20, (1, 6)), torch.randint(4, 20, (1, 5))
    name = next(name for name in read(model)[0] if name.endswith("cross"))

    def weights() -> torch.Tensor:
        with torch.no_grad(), watch(model, name) as seen:
            state = model.start(source)
            for piece in target.split(1 if stepwise else 5, 1):
                _, state = model.states(piece, state)
        return torch.cat([call[0] for call in seen[name]], -2)

    free = weights()
    with steer(model, name, {1: 3, 4: 0}):
        forced, again = weights(), weights()
    for query, key in ((1, 3), (4, 0)):
        assert_close(forced[:, query], torch.eye(6)[key].expand(len(forced), 6))
    assert_close(forced[:, 0], free[:, 0])
    assert_close(again, forced)  # another reading begins anew
    assert_close(weights(), free)


def test_hypotheses_that_share_a_memory_are_steered_alike() -> None:
    from regard.core.state import repeat

    model = transformer()
    with torch.no_grad(), steer(model, "decoder.1.cross", {0: 2}), watch(model, "decoder.1.cross") as seen:
        state = repeat(model.start(torch.randint(4, 20, (1, 4))), 3)
        model.states(torch.randint(4, 20, (3, 1)), state)
    (call,) = seen["decoder.1.cross"]
    assert_close(call, torch.eye(4)[2].expand(3, 2, 1, 4))


def test_only_looks_across_are_steered() -> None:
    with (
        pytest.raises(ConfigError, match=r"decoder.0.attention does not look from target to source, .* name one that"),
        steer(transformer(), "decoder.0.attention", {0: 0}),
    ):
        pass
