from __future__ import annotations

from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.core.linear import pack
from regard.core.spans import Spans
from regard.errors import ConfigError
from regard.models import build, schema
from regard.models.bert import SIZES, Bert, Config

M = TypeVar("M", bound=nn.Module)

TINY = {"vocab": 37, "dim": 12, "heads": 3, "layers": 2, "hidden": 20, "context": 16, "head": "pretrain"}


def tiny(**settings: Any) -> Bert:
    return randomised(Bert(Config(**{**TINY, **settings})).double().eval())


def randomised(model: M) -> M:
    """Biases and gains as well, which start at zero and one and hide mistakes there."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def batch(segments: int = 2, vocab: int = 37) -> tuple[Tensor, Tensor, Tensor]:
    """Padding on the right, on the left and inside; a row without any, and one of one token."""
    real = torch.arange(9) < torch.tensor([[9], [5], [9], [1], [7], [5]])
    real[2, :3] = False
    real[4, 2:4] = False
    tokens = torch.randint(1, vocab, real.shape) * real
    return tokens, real, torch.randint(0, segments, real.shape) * real


# ------------------------------------------------------------------ the same as transformers'

PARTS = {  # theirs: ours, in each block
    "attention.self.query": "attention.score.query",
    "attention.self.key": "attention.score.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "around_attention.norm",
    "intermediate.dense": "feed_forward.wide",
    "output.dense": "feed_forward.narrow",
    "output.LayerNorm": "around_feed_forward.norm",
}
OUTSIDE = {
    "bert.embeddings.word_embeddings": "words",
    "bert.embeddings.token_type_embeddings": "segments",
    "bert.embeddings.position_embeddings": "positions.table",
    "bert.embeddings.LayerNorm": "norm",
    "bert.pooler.dense": "pooler",
    "cls.predictions.transform.dense": "masked.dense",
    "cls.predictions.transform.LayerNorm": "masked.norm",
    "cls.predictions": "masked",
    "cls.seq_relationship": "next",
}


def theirs_as(config: Config, dtype: torch.dtype) -> Any:
    transformers = pytest.importorskip("transformers")
    acts = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
    made = transformers.BertConfig(
        vocab_size=config.vocab,
        hidden_size=config.dim,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.hidden,
        max_position_embeddings=config.context,
        type_vocab_size=config.segments,
        hidden_act=acts[config.activation],
        layer_norm_eps=config.epsilon,
    )
    return randomised(transformers.BertForPreTraining(made).to(dtype).eval())


def copied(theirs: Any, config: Config) -> Bert:
    names = OUTSIDE | {
        f"bert.encoder.layer.{i}.{their}": f"encoder.{i}.{our}"
        for i in range(config.layers)
        for their, our in PARTS.items()
    }
    weights = theirs.state_dict()
    found = {
        f"{our}.{kind}": weights[f"{their}.{kind}"]
        for their, our in names.items()
        for kind in ("weight", "bias")
        if f"{their}.{kind}" in weights
    }
    found["masked.weight"] = found["words.weight"]
    ours = Bert(config).to(theirs.dtype).eval()
    ours.load_state_dict(found)  # all of them, or it complains
    return ours


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dim": 36, "heads": 3, "hidden": 50, "segments": 3, "layers": 1},
        {"dim": 7, "heads": 1, "hidden": 3, "layers": 3, "context": 9, "segments": 1},
        {"dim": 10, "heads": 5, "hidden": 11, "vocab": 1009, "activation": "relu"},
        {"activation": "gelu_tanh", "epsilon": 1e-3},
    ],
    ids=["tiny", "three segments", "one head", "relu", "tanh"],
)
def test_both_heads_say_what_transformers_say(settings: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    config = Config(**{**TINY, **settings})
    theirs = theirs_as(config, dtype)
    ours = copied(theirs, config)
    tokens, real, segments = batch(config.segments, config.vocab or 0)
    wanted = theirs(input_ids=tokens, attention_mask=real.long(), token_type_ids=segments)
    hidden = ours(tokens, real, segments)
    assert (ours.masked.logits(hidden)[real] - wanted.prediction_logits[real]).abs().max() <= tolerance
    begins = real[:, 0]
    summary = ours.summary(hidden)[begins]
    pooled = theirs.bert(input_ids=tokens, attention_mask=real.long(), token_type_ids=segments).pooler_output[begins]
    assert (summary - pooled).abs().max() <= tolerance
    assert (ours.next(summary) - wanted.seq_relationship_logits[begins]).abs().max() <= tolerance
    assert (wanted.prediction_logits[real].std() > 0.1).all()  # of what could have been wrong


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({"size": "base"}, 109_482_240),
        ({"size": "base", "head": "pretrain"}, 110_106_428),
        ({"size": "large"}, 335_141_888),
        ({"size": "tiny"}, 4_385_920),
        ({"size": "mini"}, 11_170_560),
        ({"size": "base", "head": "sentence", "labels": 3}, 109_482_240 + 3 * 769),
        ({"size": "base", "head": "words", "labels": 9}, 109_482_240 - 768 * 769 + 9 * 769),
    ],
)
def test_the_published_sizes_have_as_many_parameters(settings: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        model = Bert(Config(vocab=30_522, **settings))
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_feed_forward_is_four_times_as_wide_in_every_size() -> None:
    assert {"tiny", "mini", "small", "medium", "base", "large"} == set(SIZES)
    assert all(row["hidden"] == 4 * row["dim"] and row["dim"] == 64 * row["heads"] for row in SIZES.values())


# ------------------------------------------------------------------ padding, and who sees whom


def test_padding_changes_nothing_in_value_and_gradient() -> None:
    """A batch of uneven rows, and each row as it stands alone in a batch with its padding left in place or cut off."""
    model = tiny()
    tokens, real, segments = batch()
    together = model(tokens, real, segments)
    torch.manual_seed(1)
    towards = torch.randn_like(together) * real[..., None]
    grads = torch.autograd.grad(together, model.words.weight, towards)[0]
    apart = torch.zeros_like(grads)
    for row, keep in enumerate(real):
        end = int(keep.nonzero().max()) + 1
        part = slice(row, row + 1)
        alone = model(tokens[part, :end], real[part, :end], segments[part, :end])
        torch.testing.assert_close(alone[0][keep[:end]], together[row][keep], rtol=0, atol=1e-12)
        apart += torch.autograd.grad(alone, model.words.weight, towards[part, :end])[0]
    torch.testing.assert_close(apart, grads, rtol=0, atol=1e-11)


def test_every_token_sees_all_others_and_no_padding() -> None:
    model = tiny()
    tokens, real, segments = batch()
    given: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> Tensor:
        given.append(result.detach().requires_grad_())
        return given[0]

    model.words.register_forward_hook(keep)
    hidden = model(tokens, real, segments)
    assert given[0].shape == (1, int(real.sum()), 12)  # real tokens alone are read
    row = Spans(real).pack(torch.arange(len(real))[:, None].expand_as(real))[0]
    for b in range(len(real)):
        for t in real[b].nonzero()[:, 0].tolist():
            (grad,) = torch.autograd.grad(hidden[b, t].square().sum(), given[0], retain_graph=True)
            assert torch.equal(grad[0].abs().sum(-1) > 0, row == b)


def test_a_row_of_padding_stays_finite_and_hurts_nobody() -> None:
    model = tiny()
    tokens, real, segments = batch()
    before = model(tokens, real, segments)
    real[1] = False
    after = model(tokens, real, segments)
    torch.testing.assert_close(after[real], before[real])
    after.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model(tokens, torch.zeros_like(real)).shape == (*real.shape, 12)


def test_without_words_about_segments_all_is_the_first() -> None:
    model = tiny()
    tokens, real, segments = batch()
    assert torch.equal(model(tokens, real), model(tokens, real, torch.zeros_like(segments)))
    assert not torch.equal(model(tokens, real)[real], model(tokens, real, torch.ones_like(segments))[real])


def test_only_hidden_positions_need_the_head() -> None:
    model = tiny()
    tokens, real, segments = batch()
    hidden = model(tokens, real, segments)
    chosen = real & (torch.rand(real.shape) < 0.5)
    targets = torch.randint(0, 37, real.shape)
    loss = model.masked(hidden[chosen], targets[chosen])
    everywhere = F.cross_entropy(model.masked.logits(hidden).transpose(1, 2), targets, reduction="none")
    assert loss.count == int(chosen.sum())
    torch.testing.assert_close(loss.total, everywhere[chosen].sum())
    told = model.masked(hidden, targets, real=chosen)
    assert told.count == loss.count
    torch.testing.assert_close(told.total, loss.total)
    wrt = list(model.parameters())
    ours, full = (
        torch.autograd.grad(y, wrt, retain_graph=True, allow_unused=True)
        for y in (loss.total, everywhere[chosen].sum())
    )
    for one, other in zip(ours, full, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(model.masked.logprobs(hidden, targets), -everywhere.detach())


def test_the_matrix_of_the_words_is_the_heads_as_well() -> None:
    model = tiny()
    assert model.masked.weight is model.words.weight
    assert model.masked.bias is not None
    assert model.masked.bias.shape == (37,)


# ------------------------------------------------------------------ heads


def test_each_head_has_the_layers_that_it_needs() -> None:
    parts = {
        head: {name.split(".")[0] for name, _ in tiny(head=head, labels=5).named_parameters()}
        - {"words", "segments", "positions", "norm", "encoder"}
        for head in ("none", "pretrain", "sentence", "words")
    }
    assert parts == {
        "none": {"pooler"},
        "pretrain": {"pooler", "masked", "next"},
        "sentence": {"pooler", "labels"},
        "words": {"labels"},
    }


def test_labels_are_told_of_a_text_or_of_each_token() -> None:
    tokens, real, segments = batch()
    sentence, words = tiny(head="sentence", labels=5), tiny(head="words", labels=4)
    assert sentence.labels(sentence.summary(sentence(tokens, real, segments))).shape == (6, 5)
    assert words.labels(words(tokens, real, segments)).shape == (6, 9, 4)
    with pytest.raises(ConfigError, match='head = "words" has no summary of a text; build the model with head = "sent'):
        words.summary(words(tokens))


def test_dropout_is_where_the_settings_say() -> None:
    tokens, real, segments = batch()
    quiet: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "head": "sentence", "labels": 3}
    for setting in ("dropout", "attention_dropout"):
        model = tiny(**{**quiet, setting: 0.5}).train()
        assert not torch.equal(*(model(tokens, real, segments) for _ in range(2))), setting
        summary = torch.randn(2, 12, dtype=torch.float64)
        assert torch.equal(model.labels(summary), model.labels(summary)) == (setting != "dropout")
        assert torch.equal(*(model.eval()(tokens, real, segments) for _ in range(2)))
    model = tiny(**quiet).train()
    assert torch.equal(*(model(tokens, real, segments) for _ in range(2)))


def test_weights_begin_small_and_cut_off() -> None:
    model = Bert(Config(vocab=500, dim=64, heads=4, layers=2, hidden=256, head="pretrain"))
    for name, p in model.named_parameters():
        if p.ndim == 2:
            assert p.abs().max() <= 0.04
            assert p.numel() < 1000 or 0.0165 < p.std() < 0.0187, name  # what is beyond 2 σ of .02 is drawn again
        else:
            assert torch.equal(p, torch.full_like(p, float("norm.weight" in name))), name


# ------------------------------------------------------------------ watched, silenced, compiled, prepared


def test_the_weights_shown_are_those_of_the_padded_batch() -> None:
    model = tiny()
    tokens, real, segments = batch()
    before = model(tokens, real, segments)
    with regard.watch(model) as seen:
        assert torch.equal(model(tokens, real, segments), before)
    assert list(seen) == ["encoder.0.attention", "encoder.1.attention"]
    for (weights,) in seen.values():
        assert weights.shape == (6, 3, 9, 9)
        torch.testing.assert_close(weights.sum(-1), real[:, None].double().expand(-1, 3, -1))
        assert (weights.transpose(2, 3)[~real[:, None].expand(-1, 3, -1)] == 0).all()
    with regard.watch(model, queries=[0], heads=[1]) as first:
        model(tokens[1:2, :5], None, segments[1:2, :5])
    torch.testing.assert_close(first["encoder.1.attention"][0], seen["encoder.1.attention"][0][1:2, 1:2, :1, :5])


def test_silencing_any_head_is_heard() -> None:
    model = tiny()
    tokens, real, segments = batch()
    before = model(tokens, real, segments)
    for name in ("encoder.0.attention", "encoder.1.attention"):
        for head in range(3):
            with regard.silence(model, name, [head]):
                assert not torch.equal(model(tokens, real, segments), before)
    assert torch.equal(model(tokens, real, segments), before)


@torch.no_grad()
def test_a_compiled_model_says_the_same() -> None:
    model = tiny()
    tokens, real, segments = batch()
    wanted = model(tokens, real, segments)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, real, segments)[real], wanted[real])
    torch.testing.assert_close(compiled(tokens), model(tokens))


@torch.no_grad()
def test_a_prepared_model_says_the_same() -> None:
    model = Bert(Config(vocab=37, dim=512, heads=8, layers=1, hidden=520, head="pretrain")).eval()
    tokens, real, segments = batch()
    wanted = model(tokens, real, segments)
    torch.testing.assert_close(pack(model)(tokens, real, segments), wanted, rtol=0, atol=1e-5)
    assert torch.equal(model(tokens, torch.zeros_like(real)), torch.zeros_like(wanted))


# ------------------------------------------------------------------ what its relatives have otherwise


def test_without_segments_a_part_is_like_any_other() -> None:
    tokens, real, segments = batch()
    model = tiny(segments=0)
    assert torch.equal(model(tokens, real, segments), model(tokens, real))
    one = tiny(segments=1)  # one embedding for all parts
    assert torch.equal(one(tokens, real, segments), one(tokens, real))


def test_an_offset_shifts_the_table_of_positions() -> None:
    tokens, real, segments = batch()
    plain, shifted = tiny(), tiny(offset=3)
    rows = shifted.positions.table.weight[3:].clone()
    shifted.load_state_dict({**plain.state_dict(), "positions.table.weight": shifted.positions.table.weight})
    with torch.no_grad():
        plain.positions.table.weight.copy_(rows)
    assert torch.equal(plain(tokens, real, segments), shifted(tokens, real, segments))
    assert shifted.longest == plain.longest


def test_poolers() -> None:
    tokens, real, segments = batch()
    hidden = tiny()(tokens, real, segments)
    through, cut = tiny(pooler="tanh"), tiny(pooler="relu")
    cut.load_state_dict(through.state_dict())
    assert torch.allclose(cut.summary(hidden), through.summary(hidden).atanh().relu())
    for settings, what in (({"pooler": "none"}, 'pooler = "none"'), ({"head": "masked"}, 'head = "masked"')):
        with pytest.raises(ConfigError, match=f"{what} has no summary of a text"):
            tiny(**{"head": "none", **settings}).summary(hidden)


def test_hidden_tokens_may_be_guessed_with_a_matrix_of_their_own() -> None:
    tied, own = tiny(head="masked"), tiny(head="masked", tied=False)
    assert tied.masked.weight is tied.words.weight
    assert own.masked.weight is not own.words.weight
    assert not hasattr(own, "next")


# ------------------------------------------------------------------ what cannot be built


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dim": 64, "heads": 5}, "heads: dim=64 does not divide into heads=5; try heads=4"),
        ({"size": "bsae"}, r"size: no size 'bsae'; did you mean 'base'\?"),
        ({"head": "word"}, "head: must be 'none', 'pretrain', 'masked', 'sentence' or 'words', but it is \"word\""),
        (
            {"head": "sentence", "pooler": "none"},
            'pooler: head = "sentence" asks for a summary of the text; write pooler = "tanh"',
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        Config(**settings)


def test_what_the_data_must_tell_before_a_model_can_be_built() -> None:
    assert schema("bert") is Config
    small: dict[str, Any] = {**TINY, "head": "none"}
    assert isinstance(build("bert", Config(**small)), Bert)
    with pytest.raises(ConfigError, match=r"^model.vocab: missing; a bert cannot be built without it$"):
        build("bert", Config())
    for head in ("sentence", "words"):
        with pytest.raises(ConfigError, match=r"^model.labels: missing; a bert cannot be built without it$"):
            build("bert", Config(**{**small, "head": head}))


def test_a_text_beyond_the_context_is_answered_with_a_sentence() -> None:
    model = tiny(context=4)
    assert model.longest == model.config.longest == 4
    with pytest.raises(ConfigError, match="a sequence of 9 tokens came, but the learned positions end at 4"):
        model(*batch())
