"""GPT-1 and GPT-2 against the public implementation, against their published sizes, and against themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from along import stand_in
from torch import Tensor, nn

import regard
from regard.core.documents import Documents
from regard.core.linear import pack
from regard.core.watch import attentions, silence
from regard.data.stream import Excerpts
from regard.decode import beam, greedy, sample
from regard.errors import ConfigError
from regard.models import build, schema
from regard.models.gpt import GPT, SIZES, Config

VOCAB = 13
TINY = {"vocab": VOCAB, "dim": 12, "heads": 3, "layers": 2, "context": 16, "dropout": 0.0, "attention_dropout": 0.0}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt-2": {},
    "gpt-1": {"norm": "post", "scaled_init": False},
    "without biases": {"bias": False},
    "odd": {"dim": 15, "heads": 5, "hidden": 7, "layers": 1, "activation": "gelu"},
}
every_shape = pytest.mark.parametrize("shape", SHAPES)
# Seven tokens a row: documents of 3 + 4, one of 7, and 1 + 1 + 5.
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [5, 5, 5, 5, 5, 5, 5], [2, 0, 1, 1, 1, 1, 1]])


def make(shape: str = "gpt-2", **settings: Any) -> GPT:
    """In float64, with gains and biases that are not one and zero, where mistakes would hide."""
    torch.manual_seed(0)
    return randomised(GPT(Config(**{**TINY, **SHAPES[shape], **settings})).double().eval())


def randomised(model: GPT) -> GPT:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def close(ours: Tensor, theirs: Tensor, within: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within)


def tokens(rows: int = 3, length: int = 7) -> Tensor:
    return torch.randint(4, VOCAB, (rows, length))


# ------------------------------------------------------------------ the same as the public implementation

ODD = {"n_embd": 36, "n_head": 3, "n_layer": 3, "vocab_size": 37, "n_positions": 19, "layer_norm_epsilon": 1e-3}


def theirs(kind: str, **settings: Any) -> tuple[Any, dict[str, Tensor]]:
    """One of transformers' models with random weights, and these by name."""
    transformers = pytest.importorskip("transformers")
    gpt1 = kind.startswith("OpenAI")
    config = (transformers.OpenAIGPTConfig if gpt1 else transformers.GPT2Config)(**{**ODD, **settings})
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model, model.state_dict()


def ours(config: Config, held: dict[str, Tensor]) -> GPT:
    """A model with their weights; theirs lie transposed, and queries, keys and values in one matrix."""
    model = GPT(config).eval()
    result = model.load_state_dict(dict(translated(config, held)), strict=False)
    assert result.missing_keys == []
    assert result.unexpected_keys == []
    return model


def translated(config: Config, held: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    names = ("wte", "wpe") if config.norm == "pre" else ("tokens_embed", "positions_embed")
    words = held[f"transformer.{names[0]}.weight"]
    yield from {"words.weight": words, "head.weight": words}.items()
    yield "positions.table.weight", held[f"transformer.{names[1]}.weight"]
    for i in range(config.layers):
        there, here = f"transformer.h.{i}", f"blocks.{i}"
        for part in ("weight", "bias"):
            three = held[f"{there}.attn.c_attn.{part}"].chunk(3, -1)
            for name, one in zip(("score.query", "score.key", "value"), three, strict=True):
                yield f"{here}.attention.{name}.{part}", one.T if one.ndim == 2 else one
            for name, other in (
                ("attention.output", "attn.c_proj"),
                ("feed_forward.wide", "mlp.c_fc"),
                ("feed_forward.narrow", "mlp.c_proj"),
            ):
                one = held[f"{there}.{other}.{part}"]
                yield f"{here}.{name}.{part}", one.T if one.ndim == 2 else one
            yield f"{here}.around_attention.norm.{part}", held[f"{there}.ln_1.{part}"]
            yield f"{here}.around_feed_forward.norm.{part}", held[f"{there}.ln_2.{part}"]
    for part in ("weight", "bias"):
        if config.norm == "pre":
            yield f"norm.{part}", held[f"transformer.ln_f.{part}"]
        if config.labels is not None:
            yield f"labels.1.{part}", held[f"multiple_choice_head.summary.{part}"]


def odd(**settings: Any) -> Config:
    same = {"dim": 36, "heads": 3, "layers": 3, "vocab": 37, "context": 19, "epsilon": 1e-3}
    return Config(**{**same, **settings})


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    ("there", "here"),
    [
        ({}, {}),
        ({"n_inner": 23, "n_layer": 1}, {"hidden": 23, "layers": 1}),
        ({"n_head": 36, "activation_function": "gelu"}, {"heads": 36, "activation": "gelu"}),
    ],
)
@torch.no_grad()
def test_gpt_2_is_the_public_one(there: Any, here: Any, dtype: torch.dtype, within: float) -> None:
    peer, held = theirs("GPT2LMHeadModel", **there)
    model, words = ours(odd(**here), held).to(dtype), torch.randint(37, (3, 19))
    hidden, _ = model(None, None, words)
    close(model.head.logits(hidden), peer.to(dtype)(words).logits, within)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@torch.no_grad()
def test_gpt_1_with_both_heads_is_the_public_one(dtype: torch.dtype, within: float) -> None:
    """Three texts of two choices each, summed up where each one ends."""
    peer, held = theirs("OpenAIGPTDoubleHeadsModel", num_labels=1)
    model = ours(odd(norm="post", scaled_init=False, labels=1), held).to(dtype)
    words, last = torch.randint(37, (3, 2, 11)), torch.tensor([[10, 3], [0, 5], [7, 7]])
    found = peer.to(dtype)(words, mc_token_ids=last)
    hidden, _ = model(None, None, words.flatten(0, 1))
    choices = model.labels(model.summary(hidden, last.flatten()))
    close(model.head.logits(hidden).unflatten(0, (3, 2)), found.logits, within)
    close(choices.view(3, 2), found.mc_logits, within)


# ------------------------------------------------------------------ published sizes


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("gpt1", 116_534_784),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("nano", 10_745_088),
        ("nano-cpu", 804_096),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(size: str, parameters: int) -> None:
    """The character models with tiny Shakespeare's 65 characters."""
    settings: dict[str, Any] = {"size": size} | ({"vocab": 65} if size.startswith("nano") else {})
    with torch.device("meta"):
        model = build("gpt", schema("gpt")(**settings))
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_every_size_is_counted() -> None:
    (mark,) = test_published_sizes_have_the_published_number_of_parameters.pytestmark  # type: ignore[attr-defined]
    assert {size for size, _ in mark.args[1]} == set(SIZES)


def test_without_biases_there_is_none_but_the_labels() -> None:
    assert [name for name, _ in make("without biases", labels=2).named_parameters() if "bias" in name] == [
        "labels.1.bias"
    ]


# ------------------------------------------------------------------ how it begins


@pytest.mark.parametrize("layers", [2, 8])
@torch.no_grad()
def test_gpt_2_begins_with_residual_matrices_that_shrink_with_depth(layers: int) -> None:
    model = GPT(Config(vocab=500, dim=96, heads=3, layers=layers, context=200))
    last = [p for name, p in model.named_parameters() if name.endswith(("output.weight", "narrow.weight"))]
    assert len(last) == 2 * layers
    for matrix in last:
        assert matrix.std() == pytest.approx(0.02 / math.sqrt(2 * layers), rel=0.05)
    for name, matrix in model.named_parameters():
        if name.endswith(("query.weight", "key.weight", "value.weight", "wide.weight")) or name == "words.weight":
            assert matrix.std() == pytest.approx(0.02, rel=0.05), name
    assert model.positions.table.weight.std() == pytest.approx(0.01, rel=0.05)


@torch.no_grad()
def test_gpt_1_begins_with_one_deviation_for_all_matrices() -> None:
    model = GPT(Config(vocab=500, dim=96, heads=3, layers=2, context=200, norm="post", scaled_init=False, labels=300))
    for name, matrix in model.named_parameters():
        if matrix.ndim == 2:
            assert matrix.std() == pytest.approx(0.02, rel=0.05), name


@pytest.mark.parametrize("scaled", [True, False])
@torch.no_grad()
def test_scaled_the_residual_does_not_grow_with_depth(scaled: bool) -> None:
    """What is added up to the last norm, at first: about as much in 4 layers as in 32."""

    def spread(layers: int) -> float:
        model = GPT(Config(vocab=60, dim=48, heads=4, layers=layers, context=32, scaled_init=scaled)).eval()
        sums: list[Tensor] = []
        model.norm.register_forward_pre_hook(lambda _, given: sums.append(given[0]))
        words = torch.randint(60, (8, 32))
        model(None, None, words)
        start = model.words(words) + model.positions(0, 32)
        return float((sums[0] - start).std())

    growth = spread(32) / spread(4)
    assert (growth < 1.3) == scaled


# ------------------------------------------------------------------ reading on


@every_shape
@torch.no_grad()
def test_reading_in_uneven_pieces_is_reading_at_once(shape: str) -> None:
    model, words = make(shape), tokens(length=9)
    state, pieces = model.start(None, None, rows=3), []
    for piece in words.split([2, 1, 5, 1], 1):
        hidden, state = model.states(piece, state)
        pieces.append(hidden)
    close(torch.cat(pieces, 1), model(None, None, words)[0])
    assert state.length == 9


@every_shape
@torch.no_grad()
def test_packed_it_says_the_same(shape: str) -> None:
    model, words = make(shape), tokens()
    before, _ = model(None, None, words)
    close(pack(model)(None, None, words)[0], before)


def test_a_token_moves_with_those_before_it_and_not_with_those_after() -> None:
    model, words = make(), tokens(rows=1)
    vectors = model.words(words).detach().requires_grad_()
    model.words.register_forward_hook(lambda part, given, result: vectors)
    hidden, _ = model(None, None, words)
    for t in range(words.shape[1]):
        (moved,) = torch.autograd.grad(hidden[0, t] @ torch.randn(12).double(), vectors, retain_graph=True)
        assert moved[0, : t + 1].abs().amax(-1).min() > 1e-6
        assert not moved[0, t + 1 :].any()


@torch.no_grad()
def test_every_search_writes_with_it() -> None:
    model, prompt = make(), tokens(length=3)
    how: dict[str, Any] = {"eos": 2, "limit": 8}
    plain = greedy(model.step, model.start(None, None, rows=3), prompt, **how)
    beams = beam(model.step, model.start(None, None, rows=3), prompt, keep=1, **how)
    drawn = sample(model.step, model.start(None, None, rows=3), prompt, seeds=[1, 2, 3], **how)
    assert [h.tokens for h in plain] == [found[0].tokens for found in beams]
    for row, answer in enumerate([*plain, *drawn]):
        said = torch.tensor([*prompt[row % 3].tolist(), *answer.tokens, *([2] if answer.finished else [])])[None]
        logprobs = model.head.logprobs(model(None, None, said[:, :-1])[0], said[:, 1:])
        assert float(logprobs[0, 2:].sum()) == pytest.approx(answer.logprob, abs=1e-6)


@torch.no_grad()
def test_it_can_be_watched_and_silenced() -> None:
    model, words = make(), tokens()
    plain, _ = model(None, None, words)
    with regard.watch(model) as seen:
        assert torch.equal(model(None, None, words)[0], plain)
    assert list(seen) == list(attentions(model)) == ["blocks.0.attention", "blocks.1.attention"]
    for (weights,) in seen.values():
        close(weights.sum(-1), torch.ones(3, 3, 7).double())
        assert not weights.triu(1).any()
    with silence(model, "blocks.1.attention", [2]):
        assert not torch.equal(model(None, None, words)[0], plain)


# ------------------------------------------------------------------ packed documents


def alone(row: Tensor, documents: Tensor) -> list[Tensor]:
    """The documents of one row, in their order."""
    _, lengths = documents.unique_consecutive(return_counts=True)
    return [piece[None] for piece in row.split(lengths.tolist())]


@every_shape
@torch.no_grad()
def test_a_packed_document_is_read_as_if_it_stood_alone(shape: str) -> None:
    model, words = make(shape), tokens()
    packed, _ = model(None, None, words, documents=DOCUMENTS)
    for row in range(3):
        pieces = [model(None, None, piece)[0] for piece in alone(words[row], DOCUMENTS[row])]
        close(packed[row : row + 1], torch.cat(pieces, 1))
    assert not torch.allclose(packed, model(None, None, words)[0])


@torch.no_grad()
def test_packed_documents_can_be_read_in_pieces_too() -> None:
    model, words = make(), tokens()
    packed, _ = model(None, None, words, documents=DOCUMENTS)
    told = torch.ones_like(words, dtype=torch.bool)
    close(model(None, None, words, told, documents=DOCUMENTS)[0], packed)


def test_packed_documents_have_the_gradients_of_each_alone() -> None:
    model, words = make(), tokens()
    towards = torch.randn(3, 7, 12).double()
    (model(None, None, words, documents=DOCUMENTS)[0] * towards).sum().backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row in range(3):
        pieces = [model(None, None, piece)[0] for piece in alone(words[row], DOCUMENTS[row])]
        (torch.cat(pieces, 1)[0] * towards[row]).sum().backward()
    for name, p in model.named_parameters():
        if name in packed:
            close(p.grad, packed[name], 1e-11)  # type: ignore[arg-type]


# ------------------------------------------------------------------ summaries and labels


@torch.no_grad()
def test_a_summary_knows_nothing_of_what_follows_it() -> None:
    model, words, last = make(labels=4), tokens(), torch.tensor([6, 2, 0])
    hidden, _ = model(None, None, words)
    for row, at in enumerate(last.tolist()):
        short, _ = model(None, None, words[row : row + 1, : at + 1])
        close(model.summary(hidden, last)[row], short[0, -1])
    assert model.labels(model.summary(hidden, last)).shape == (3, 4)


def test_labels_are_dropped_out_before_in_training_alone() -> None:
    model = make(labels=4, dropout=0.5)
    x = torch.randn(3, 12).double()
    assert torch.equal(model.labels(x), model.labels(x))
    model.train()
    assert not torch.equal(model.labels(x), model.labels(x))


@torch.no_grad()
def test_numbers_that_say_which_token_it_is_are_read_as_that_token() -> None:
    model, reader = make(labels=4), make(labels=4, vocab=None, inputs=VOCAB)
    held = model.state_dict() | {"enter.weight": model.words.weight.T, "enter.bias": torch.zeros(12)}
    reader.load_state_dict({name: held[name] for name in reader.state_dict()})
    assert set(held) - set(reader.state_dict()) == {"words.weight", "head.weight"}
    words = tokens()
    hidden, _ = model(None, None, words)
    close(reader(None, None, nn.functional.one_hot(words, VOCAB).double())[0], hidden)
    close(model.conclude(words), hidden[:, -1])


# ------------------------------------------------------------------ what cannot be


def test_a_prompt_beyond_the_context_is_answered_in_one_sentence() -> None:
    sentence = "^a sequence of 17 tokens came, but the learned positions end at 16; shorten it, or train with a larger"
    model = make()
    model(None, None, tokens(length=16))
    with pytest.raises(ConfigError, match=sentence):
        model(None, None, tokens(length=17))
    _, state = model(None, None, tokens(length=16))
    with pytest.raises(ConfigError, match=sentence):
        model.step(tokens(length=1), state)


def test_a_source_is_answered_with_where_to_write_it() -> None:
    sentence = "^a GPT has no source apart; write it before the target, as one sequence of tokens$"
    with pytest.raises(ValueError, match=sentence):
        make()(tokens(), None, tokens())


def test_heads_that_do_not_divide_are_answered_with_some_that_do() -> None:
    with pytest.raises(ConfigError, match=r"^heads: dim=12 does not divide into heads=5; try heads=4$"):
        Config(dim=12, heads=5)


def test_an_unknown_size_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no size 'gpt2-huge'; did you mean 'gpt2-large'"):
        Config(**{"size": "gpt2-huge"})


@pytest.mark.parametrize("kernel", [False, True])
def test_packed_documents_are_the_same_to_a_kernel_that_is_told_where_they_begin(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, words = make(), tokens()
    towards = torch.randn(3, 7, 12).double()
    batch = Excerpts(F.pad(words, (0, 1)), DOCUMENTS, (0, 1, 2)).steady()
    assert batch.starts is not None
    assert len(batch.starts) == 1 + 2 ** math.ceil(math.log2(len(batch.starts.unique()) - 1))
    (wanted, *taught) = _learnt(model, words, DOCUMENTS, towards)
    if kernel:
        stand_in(monkeypatch)
    (found, *retaught) = _learnt(model, words, Documents(DOCUMENTS, batch.starts), towards)
    for one, other in zip((found, *retaught), (wanted, *taught), strict=True):
        close(one, other, 1e-11)
    told = torch.ones_like(words, dtype=torch.bool)
    close(model(None, None, words, told, documents=Documents(DOCUMENTS, batch.starts))[0], wanted)


def _learnt(model: GPT, words: Tensor, documents: Tensor | Documents, towards: Tensor) -> list[Tensor]:
    hidden, _ = model(None, None, words, documents=documents)
    learners = [p for name, p in model.named_parameters() if not name.startswith("labels")]
    return [hidden, *torch.autograd.grad((hidden * towards).sum(), learners, materialize_grads=True)]
