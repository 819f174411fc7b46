from __future__ import annotations

import math
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.core.attention import Attention
from regard.core.block import RESIDUALS, Block, FeedForward
from regard.core.mask import Mask
from regard.core.position import sinusoid
from regard.errors import ConfigError
from regard.models import MODELS, build, schema
from regard.models.transformer import SIZES, Config, Transformer

M = TypeVar("M", bound=nn.Module)

DIM, HEADS, HIDDEN = 16, 4, 24
TINY = {"vocab": 13, "dim": DIM, "heads": HEADS, "layers": 2, "hidden": HIDDEN, "dropout": 0.0}


def tiny(**settings: Any) -> Transformer:
    return randomised(Transformer(Config(**{**TINY, **settings})).double().eval())


def randomised(model: M) -> M:
    """Biases and gains as well, which start at zero and one and hide mistakes there."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def batch() -> tuple[Tensor, Tensor, Tensor]:
    real = torch.arange(6) < torch.tensor([[6], [4], [1]])
    return torch.randint(4, 13, (3, 6)) * real, real, torch.randint(4, 13, (3, 5))


# ------------------------------------------------------------------ the same as torch.nn's


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    for i, part in enumerate((ours.score.query, ours.score.key, ours.value)):
        assert isinstance(part, nn.Linear)
        part.weight.copy_(theirs.in_proj_weight.chunk(3)[i])
        part.bias.copy_(theirs.in_proj_bias.chunk(3)[i])
    ours.output.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copied(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, norm: str, activation: str) -> Block:
    crossing = isinstance(theirs, nn.TransformerDecoderLayer)
    cross = Attention(DIM, heads=HEADS) if crossing else None
    ours = Block(Attention(DIM, heads=HEADS), FeedForward(DIM, HIDDEN, activation), lambda: RESIDUALS[norm](DIM), cross)
    ours = ours.to(theirs.linear1.weight.dtype)
    copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.around_attention, ours.around_feed_forward]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        assert ours.cross is not None
        copy_attention(ours.cross, theirs.multihead_attn)
        norms.insert(1, ours.around_cross)  # type: ignore[arg-type]
    for i, around in enumerate(norms, 1):
        around.norm.load_state_dict(getattr(theirs, f"norm{i}").state_dict())  # type: ignore[union-attr]
    assert isinstance(ours.feed_forward, FeedForward)
    ours.feed_forward.wide.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.narrow.load_state_dict(theirs.linear2.state_dict())
    return ours


def agree(ours: Tensor, theirs: Tensor, x: Tensor, tolerance: float) -> None:
    """In value, and in the gradient of the input."""
    assert (ours - theirs).abs().max() <= tolerance
    towards = torch.randn_like(ours)
    one, other = (torch.autograd.grad(y, x, towards)[0] for y in (ours, theirs))
    assert (one - other).abs().max() <= tolerance


both_orders = pytest.mark.parametrize("norm", ["post", "pre"])
activations = pytest.mark.parametrize("activation", ["relu", "gelu"])
precisions = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])


@both_orders
@activations
@precisions
def test_an_encoder_block_is_torch_nns(norm: str, activation: str, dtype: torch.dtype, tolerance: float) -> None:
    theirs = nn.TransformerEncoderLayer(
        DIM, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre", dtype=dtype
    )  # fmt: skip
    ours = copied(randomised(theirs), norm, activation)
    _, real, _ = batch()
    x = torch.randn(3, 6, DIM, dtype=dtype, requires_grad=True)
    found, _ = ours(x, Mask(keys=real))
    agree(found[real], theirs(x, src_key_padding_mask=~real)[real], x, tolerance)


@both_orders
@activations
@precisions
def test_a_decoder_block_is_torch_nns(norm: str, activation: str, dtype: torch.dtype, tolerance: float) -> None:
    theirs = nn.TransformerDecoderLayer(
        DIM, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre", dtype=dtype
    )  # fmt: skip
    ours = copied(randomised(theirs), norm, activation)
    _, real, _ = batch()
    x, memory = torch.randn(3, 5, DIM, dtype=dtype, requires_grad=True), torch.randn(3, 6, DIM, dtype=dtype)
    assert ours.cross is not None
    found, _ = ours(x, Mask(causal=True), memory=ours.cross.project(memory), memory_mask=Mask(keys=real))
    ahead = torch.ones(5, 5).triu(1).bool()
    agree(found, theirs(x, memory, tgt_mask=ahead, memory_key_padding_mask=~real), x, tolerance)


@both_orders
def test_the_whole_model_is_one_of_torch_nns_parts(norm: str) -> None:
    """√dim times the embedding, plus the waves, through both stacks; where norms come first, one more closes each."""
    model = tiny(norm=norm, bias=True)
    first = {"batch_first": True, "norm_first": norm == "pre", "dtype": torch.float64}
    readers = [randomised(nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN, 0.0, **first)) for _ in range(2)]  # type: ignore[arg-type]
    writers = [randomised(nn.TransformerDecoderLayer(DIM, HEADS, HIDDEN, 0.0, **first)) for _ in range(2)]  # type: ignore[arg-type]
    for i in range(2):
        model.encoder[i].load_state_dict(copied(readers[i], norm, "relu").state_dict())
        model.decoder[i].load_state_dict(copied(writers[i], norm, "relu").state_dict())
    source, real, target = batch()

    def embed(words: Tensor) -> Tensor:
        waves = sinusoid(torch.arange(words.shape[1], dtype=torch.float64), DIM)
        return math.sqrt(DIM) * model.words.weight[words] + waves.float()

    memory, x = embed(source), embed(target)
    for reader in readers:
        memory = reader(memory, src_key_padding_mask=~real)
    memory = model.encoder_norm(memory)
    for writer in writers:
        x = writer(x, memory, tgt_mask=torch.ones(5, 5).triu(1).bool(), memory_key_padding_mask=~real)
    assert (
        isinstance(model.decoder_norm, nn.LayerNorm) == isinstance(model.encoder_norm, nn.LayerNorm) == (norm == "pre")
    )
    torch.testing.assert_close(model(source, real, target)[0], model.decoder_norm(x), rtol=0, atol=1e-12)


# ------------------------------------------------------------------ the paper's numbers


@pytest.mark.parametrize(("size", "count"), [("base", 63_045_632), ("big", 214_171_648)])
def test_parameters_of_the_paper(size: str, count: int) -> None:
    with torch.device("meta"):
        model = build("transformer", Config(size=size, vocab=37_000))  # type: ignore[call-arg]
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("size", SIZES)
def test_every_size_can_be_built(size: str) -> None:
    with torch.device("meta"):
        model = build("transformer", Config(size=size, vocab=100))  # type: ignore[call-arg]
    assert isinstance(model, Transformer)
    assert (model.config.dim, len(model.encoder), len(model.decoder)) == (
        SIZES[size]["dim"],
        *2 * [SIZES[size]["layers"]],
    )


@pytest.mark.parametrize("tied", ["all", "target", "none"])
@both_orders
def test_the_first_guess_is_nearly_uniform(tied: str, norm: str) -> None:
    model = Transformer(Config(vocab=500, size="tiny", tied=tied, norm=norm)).eval()  # type: ignore[call-arg]
    source, target = torch.randint(4, 500, (8, 10)), torch.randint(4, 500, (8, 10))
    hidden, _ = model(source, torch.ones(8, 10, dtype=torch.bool), target)
    loss = model.head(hidden, torch.randint(4, 500, (8, 10)), real=torch.ones(8, 10, dtype=torch.bool))
    assert abs(loss.total.item() / loss.count - math.log(500)) < 1


# ------------------------------------------------------------------ tied embeddings


@pytest.mark.parametrize("tied", ["all", "none"])
def test_word_vectors_begin_with_the_spread_that_is_asked_for(tied: str) -> None:
    model = Transformer(Config(vocab=900, dim=64, heads=2, layers=1, hidden=64, tied=tied, std=0.01))
    for part in (model.words, model.source_words, model.head):
        assert float(part.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
    usual = Transformer(Config(vocab=900, dim=64, heads=2, layers=1, hidden=64, tied=tied))
    assert float(usual.words.weight.detach().std()) == pytest.approx(0.125, rel=0.05)


def test_tied_embeddings_are_one_storage() -> None:
    for tied, storages in (("all", 1), ("target", 2), ("none", 3)):
        model = tiny(tied=tied)
        matrices = [model.source_words.weight, model.words.weight, model.head.weight]
        assert len({matrix.data_ptr() for matrix in matrices}) == storages
        assert model.words.weight is model.head.weight or tied == "none"


def test_the_gradient_of_a_tied_matrix_is_the_sum_of_its_uses() -> None:
    source, real, target = batch()
    apart, one = tiny(tied="none"), tiny(tied="all")
    with torch.no_grad():
        apart.words.weight.copy_(one.words.weight)
        apart.source_words.weight.copy_(one.words.weight)
        apart.head.weight.copy_(one.words.weight)
        for a, b in zip((apart.encoder, apart.decoder), (one.encoder, one.decoder), strict=True):
            a.load_state_dict(b.state_dict())
    for model in (apart, one):
        hidden, _ = model(source, real, target[:, :-1])
        model.head(hidden, target[:, 1:], real=target[:, 1:] > 0, smoothing=0.1).total.backward()
    uses = [use.grad for use in (apart.source_words.weight, apart.words.weight, apart.head.weight)]
    assert all(use is not None and use.abs().max() > 0 for use in uses)
    torch.testing.assert_close(one.words.weight.grad, sum(uses))


def test_two_vocabularies_have_two_matrices() -> None:
    model = tiny(tied="target", source_vocab=7)
    assert (model.source_words.num_embeddings, model.words.num_embeddings) == (7, 13)
    with pytest.raises(IndexError):
        model.start(torch.tensor([[12]]), None)


# ------------------------------------------------------------------ what attention can and cannot see


class Nowhere(nn.Module):
    """No positions at all."""

    def forward(self, start: int, length: int, own: Tensor | None = None) -> Tensor:
        return torch.zeros(length, DIM)


@both_orders
def test_without_positions_the_encoder_sees_a_set(norm: str) -> None:
    model = tiny(norm=norm)
    source = torch.randperm(9)[None] + 4
    turned = torch.randperm(9)

    def keys(words: Tensor) -> Tensor:
        return model.start(words, None).memory.keys[-1].keys

    assert (keys(source)[:, :, turned] - keys(source[:, turned])).abs().max() > 1e-3  # positions matter
    model.positions = model.source_positions = Nowhere()
    torch.testing.assert_close(keys(source)[:, :, turned], keys(source[:, turned]), rtol=0, atol=1e-12)


@both_orders
def test_a_later_word_and_padding_have_no_gradient_at_all(norm: str) -> None:
    model = tiny(norm=norm, tied="target")
    source, real, target = batch()
    given: dict[str, Tensor] = {}

    def keep(name: str, words: nn.Embedding) -> None:
        def hook(_: nn.Module, __: Any, result: Tensor) -> Tensor:
            given[name] = result.detach().requires_grad_()
            return given[name]

        words.register_forward_hook(hook)

    keep("source", model.source_words)
    keep("target", model.words)
    hidden, _ = model(source, real, target)
    logits = model.head.logits(hidden)
    for t in range(5):
        read, written = torch.autograd.grad(
            logits[:, t].square().sum(), [given["source"], given["target"]], retain_graph=True
        )
        assert (written[:, t + 1 :] == 0).all()
        assert (written[:, : t + 1].abs().sum(-1) > 0).all()
        assert (read[~real] == 0).all()
        assert (read[real].abs().sum(-1) > 0).all()


def test_a_row_of_padding_stays_finite_and_hurts_nobody() -> None:
    model = tiny()
    source, real, target = batch()
    before, _ = model(source, real, target)
    real[2] = False
    after, _ = model(source, real, target)
    assert torch.isfinite(after).all()
    torch.testing.assert_close(after[:2], before[:2])
    after.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_stepping_is_the_parallel_pass_at_every_prefix(positions: str) -> None:
    model = tiny(positions=positions).float()
    source, real, target = batch()
    hidden, _ = model(source, real, target)
    whole = model.head.logits(hidden)
    with torch.no_grad():
        state = model.start(source, real)
        for t in range(5):
            logits, state = model.step(target[:, t : t + 1], state)
            assert (logits - whole[:, t]).abs().max() <= 1e-5
            assert state.length == t + 1


@torch.no_grad()
def test_the_gains_of_a_pre_norm_fold_into_the_weights_behind_it() -> None:
    """W·(γ⊙n + β) + b is (W·γ)·n + (b + W·β)."""
    model = tiny(norm="pre", bias=True)
    source, real, target = batch()
    before, _ = model(source, real, target)
    for block in (*model.encoder, *model.decoder):
        own = block.attention
        fold(block.around_attention.norm, own.score.query, own.score.key, own.value)
        fold(block.around_feed_forward.norm, block.feed_forward.wide)
        if block.cross is not None:
            fold(block.around_cross.norm, block.cross.score.query)
    after, _ = model(source, real, target)
    torch.testing.assert_close(after, before)


def fold(norm: nn.LayerNorm, *behind: nn.Linear) -> None:
    for linear in behind:
        linear.bias.add_(linear.weight @ norm.bias)
        linear.weight.mul_(norm.weight)
    norm.reset_parameters()


def test_the_attentions_have_the_names_that_users_type() -> None:
    with regard.watch(tiny(layers=1, decoder_layers=2)) as seen:
        pass
    assert list(seen) == [
        "encoder.0.attention",
        *(f"decoder.{i}.{part}" for i in range(2) for part in ("attention", "cross")),
    ]


def test_dropout_is_where_the_settings_say() -> None:
    source, real, target = batch()
    for setting in ("dropout", "attention_dropout", "activation_dropout"):
        model = tiny(**{setting: 0.5}).train()
        one, other = (model(source, real, target)[0] for _ in range(2))
        assert not torch.equal(one, other), setting
        assert torch.equal(*(model.eval()(source, real, target)[0] for _ in range(2)))


# ------------------------------------------------------------------ what cannot be built


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dim": 64, "heads": 5}, "heads: dim=64 does not divide into heads=5; try heads=4"),
        (
            {"vocab": 8, "source_vocab": 9},
            'tied: two vocabularies cannot share one matrix; write tied = "target", or tokens.joint = true',
        ),
        ({"size": "bsae"}, r"size: no size 'bsae'; did you mean 'base'\?"),
        ({"size": "huge"}, "size: no size 'huge'; known: base, big, small, tiny"),
        ({"dmi": 64}, r"dmi: no such setting; did you mean 'dim'\?"),
        ({"layers": 0}, "layers: must be greater than or equal to 1, but it is 0"),
        ({"norm": "rms"}, "norm: must be 'post' or 'pre', but it is \"rms\""),
        ({"dropout": 1.0}, "dropout: must be less than 1, but it is 1.0"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        Config(**settings)


def test_a_model_needs_its_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"^model.vocab: missing; a transformer cannot be built without it$"):
        build("transformer", Config())


def test_an_unknown_system_is_answered_with_the_nearest() -> None:
    assert "transformer" in MODELS
    with pytest.raises(ConfigError, match=r"^system: no system 'transfromer'; did you mean 'transformer'\?$"):
        schema("transfromer")


def test_a_source_is_wanted() -> None:
    with pytest.raises(ValueError, match="a Transformer reads a source before it writes; give start the source tokens"):
        tiny().start(rows=3)


def test_learned_positions_end_with_a_sentence() -> None:
    model = tiny(positions="learned", context=4)
    with pytest.raises(ConfigError, match="a sequence of 6 tokens came, but the learned positions end at 4"):
        model.start(batch()[0], None)


@pytest.mark.parametrize(
    ("size", "row"),
    [
        ("tiny", {"dim": 128, "heads": 4, "layers": 4, "hidden": 256, "dropout": 0.3}),
        ("base", {"dim": 512, "heads": 8, "layers": 6, "hidden": 2048, "dropout": 0.1}),
        ("big", {"dim": 1024, "heads": 16, "layers": 6, "hidden": 4096, "dropout": 0.3}),
    ],
)
def test_the_sizes_are_those_of_the_papers(size: str, row: dict[str, float]) -> None:
    config = Config(vocab=37000, size=size)  # type: ignore[call-arg]
    assert {name: getattr(config, name) for name in row} == row


def test_a_score_by_place_says_how_far_it_reaches() -> None:
    located = {"vocab": 10, "dim": 8, "heads": 2, "layers": 1, "hidden": 8, "score": "location", "rows": 9}
    assert Config(**located, beyond="refuse").longest == 9
    assert Config(**located, beyond="refuse", positions="learned", context=5).longest == 5
    assert Config(**located).longest is None
    model = Transformer(Config(**located))
    assert model.decoder[0].cross.score.positions == 9  # type: ignore[union-attr]
