"""Every score against its formula, in its identities, and at work: in a block, in somebody's own model, on the page."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.core import attention as attention_module
from regard.core import score as module
from regard.core.attention import Attention
from regard.core.block import RESIDUALS, Block, FeedForward
from regard.core.linear import pack
from regard.core.mask import Mask
from regard.core.score import SCORES, Additive, ConcatLiteral, Dot, General, Location, Place, Score
from regard.core.state import KV
from regard.errors import ConfigError, DataError

ROOT = Path(__file__).parents[2]
EIGHT = ("dot", "scaled_dot", "general", "additive", "concat", "mlp", "cosine", "location")
BY_TABLE = {"additive", "concat", "mlp", "location", "concat_literal"}  # all others come down to a dot product
EQUAL_WIDTHS = {"dot", "scaled_dot_literal"}
REAL = torch.arange(5) < torch.tensor([[5], [3], [1]])

every_score = pytest.mark.parametrize("name", SCORES)


def make(name: str | Score, dim: int = 6, memory_dim: int = 6, heads: int = 2, **how: Any) -> Attention:
    """In float64, with biases that are not zero."""
    attention = Attention(dim, score=name, heads=heads, memory_dim=memory_dim, **how).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.7)
    return attention


def words(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def table(attention: Attention, x: Tensor, memory: Tensor) -> Tensor:
    """The raw scores (B, H, Q, K)."""
    q = attention.score.query(x).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
    found: Tensor = attention.score(q, attention.project(memory).keys, Place())
    return found


def weigh(attention: Attention, x: Tensor, memory: Tensor, mask: Mask = Mask()) -> Tensor:
    return attention.weigh(x, attention.project(memory), mask)


def test_there_are_eight_and_the_literal_ones() -> None:
    assert tuple(SCORES) == (*EIGHT, "scaled_dot_literal", "concat_literal", "cosine_literal")


# ------------------------------------------------------------------ formulas, for one query, one key and one head

# What each score says of query q and key k, which is the i-th; `s` holds its parameters, `h` is the head's slice.
FORMULAS: dict[str, Callable[[Any, slice, int, Tensor, Tensor, int], Tensor]] = {
    "dot": lambda s, h, head, q, k, i: q[h] @ k[h],
    "scaled_dot": lambda s, h, head, q, k, i: s.query(q)[h] @ s.key(k)[h] / math.sqrt(len(s.key(k)[h])),
    "general": lambda s, h, head, q, k, i: (s.query.weight @ q)[h] @ k[h],
    "additive": lambda s, h, head, q, k, i: s.v[head, :, 0] @ torch.tanh(s.query.bias + whole(s) @ both(q, k))[h],
    "concat": lambda s, h, head, q, k, i: s.v[head, :, 0] @ torch.tanh(whole(s) @ both(q, k))[h],
    "mlp": lambda s, h, head, q, k, i: (
        s.v[head, :, 0]
        @ torch.tanh(s.middle[head].T @ torch.tanh(s.query.bias + whole(s) @ both(q, k))[h] + s.bias[head, 0, 0])
    ),
    "cosine": lambda s, h, head, q, k, i: (
        torch.log1p(s.strength[head, 0, 0].exp()) * F.cosine_similarity(s.query(q)[h], s.key(k)[h], 0)
    ),
    "location": lambda s, h, head, q, k, i: s.query(q)[head * s.positions + i],
    "scaled_dot_literal": lambda s, h, head, q, k, i: q[h] @ k[h] / torch.sqrt(k[h].square().sum().sqrt()),
    "concat_literal": lambda s, h, head, q, k, i: s.v[head, :, 0] @ torch.tanh(s.query.weight @ q + k)[h],
    "cosine_literal": lambda s, h, head, q, k, i: F.cosine_similarity(s.query(q)[h], s.key(k)[h], 0),
}


def whole(score: Any) -> Tensor:
    """W of W[q; k]: the two projections side by side."""
    return torch.cat([score.query.weight, score.key.weight], 1)


def both(q: Tensor, k: Tensor) -> Tensor:
    return torch.cat([q, k])


@every_score
@pytest.mark.parametrize("heads", [1, 2])
def test_a_score_is_its_formula(name: str, heads: int) -> None:
    memory_dim = 6 if name in EQUAL_WIDTHS else 8
    attention = make(name, memory_dim=memory_dim, heads=heads)
    x, memory = words(2, 3, 6), words(2, 4, memory_dim)
    found = table(attention, x, memory)
    of_memory = name in {"general", "concat_literal"}  # these meet in the keys' own width
    wide = (memory_dim if of_memory else 6) // heads
    for b, head, q, k in torch.cartesian_prod(*(torch.arange(n) for n in found.shape)).tolist():
        h = slice(head * wide, (head + 1) * wide)
        wanted = FORMULAS[name](attention.score, h, head, x[b, q], memory[b, k], k)
        torch.testing.assert_close(found[b, head, q, k], wanted, rtol=0, atol=1e-12)


@every_score
def test_weights_are_a_distribution_over_the_real_keys(name: str) -> None:
    attention, x, memory = make(name), words(3, 4, 6), words(3, 5, 6)
    weights = weigh(attention, x, memory, Mask(keys=REAL))
    assert (weights >= 0).all()
    assert (weights.masked_select(~REAL[:, None, None]) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4, dtype=torch.float64))
    torch.testing.assert_close(weights[0], table(attention, x, memory)[0].softmax(-1))  # once, and of nothing else
    with torch.no_grad():
        memory[~REAL] = 99.0
    assert torch.equal(weigh(attention, x, memory, Mask(keys=REAL)), weights)


class Shifted(Score):
    """Another score, and more for every key alike."""

    def __init__(self, inner: Score) -> None:
        super().__init__(inner.query, inner.key)
        self.inner = inner

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:
        found: Tensor = self.inner(q, k, place)
        return found + 30 * q[..., :1]


@every_score
def test_adding_the_same_to_all_scores_of_a_query_changes_no_weight(name: str) -> None:
    attention, x, memory = make(name), words(3, 4, 6), words(3, 5, 6)
    before = weigh(attention, x, memory, Mask(keys=REAL))
    attention.score = Shifted(attention.score)
    torch.testing.assert_close(weigh(attention, x, memory, Mask(keys=REAL)), before, rtol=0, atol=1e-12)


@every_score
def test_looking_is_weighing_and_reading(name: str) -> None:
    """In value and in every gradient."""
    attention, x, memory = make(name), words(3, 4, 6), words(3, 5, 6)
    kv, mask = attention.project(memory), Mask(keys=REAL)
    looked, read = attention.look(x, kv, mask), attention.read(attention.weigh(x, kv, mask), kv)
    torch.testing.assert_close(looked, read, rtol=0, atol=1e-12)
    towards, wrt = torch.randn_like(looked), [x, memory, *attention.parameters()]
    one, other = (
        torch.autograd.grad(y, wrt, towards, retain_graph=True, materialize_grads=True, allow_unused=True)
        for y in (looked, read)
    )
    for fused, plain in zip(one, other, strict=True):
        torch.testing.assert_close(fused, plain, rtol=0, atol=1e-12)


@every_score
def test_what_is_a_dot_product_runs_in_the_fused_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = F.scaled_dot_product_attention

    def spy(*given: Any, **how: Any) -> Tensor:
        calls.append(given)
        return kernel(*given, **how)

    monkeypatch.setattr(attention_module.F, "scaled_dot_product_attention", spy)
    make(name)(words(2, 3, 6), words(2, 4, 6))
    assert len(calls) == (name not in BY_TABLE)


# ------------------------------------------------------------------ identities


def same(*attentions: Attention, x: Tensor, memory: Tensor) -> None:
    first, *others = (table(attention, x, memory) for attention in attentions)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-12)


@torch.no_grad()
def become_identities(*parts: Any) -> None:
    for part in parts:
        nn.init.eye_(part.weight)
        if part.bias is not None:
            nn.init.zeros_(part.bias)


def test_dot_is_general_with_the_identity() -> None:
    dot, general = make("dot"), make("general")
    become_identities(general.score.query)
    same(dot, general, x=words(2, 3, 6), memory=words(2, 4, 6))


def test_scaled_dot_is_dot_of_a_shorter_query() -> None:
    """√D is of the width of a head, here 3."""
    dot, scaled = make("dot"), make("scaled_dot")
    become_identities(scaled.score.query, scaled.score.key)
    x, memory = words(2, 3, 6), words(2, 4, 6)
    torch.testing.assert_close(table(scaled, x, memory), table(dot, x / math.sqrt(3), memory), rtol=0, atol=1e-12)


def test_cosine_is_dot_of_unit_vectors_times_the_key_strength() -> None:
    dot, cosine = make("dot"), make("cosine")
    become_identities(cosine.score.query, cosine.score.key)
    x, memory = words(2, 3, 6), words(2, 4, 6)
    units = (F.normalize(t.unflatten(-1, (2, 3)), dim=-1).flatten(-2) for t in (x, memory))
    strength = F.softplus(cosine.score.strength)  # type: ignore[arg-type]
    assert (strength[0] - strength[1]).abs() > 0.1  # each head has its own
    torch.testing.assert_close(table(cosine, x, memory), strength * table(dot, *units), rtol=0, atol=1e-12)


def test_key_strength_begins_at_one_and_is_never_negative() -> None:
    cosine, literal = Attention(6, score="cosine"), Attention(6, score="cosine_literal")
    literal.load_state_dict({name: p for name, p in cosine.state_dict().items() if "strength" not in name})
    x, memory = torch.randn(2, 3, 6), torch.randn(2, 4, 6)
    torch.testing.assert_close(cosine(x, memory), literal(x, memory))
    assert F.softplus(torch.tensor(-1e4)) == 0


def test_concat_is_additive_without_a_bias() -> None:
    concat, additive = make("concat", bias=False), make("additive", bias=False)
    additive.load_state_dict(concat.state_dict())
    same(concat, additive, x=words(2, 3, 6), memory=words(2, 4, 6))


def test_literal_concat_is_concat_that_leaves_the_keys_as_they_are() -> None:
    literal, concat = make("concat_literal"), make("concat")
    concat.load_state_dict(literal.state_dict(), strict=False)
    become_identities(concat.score.key)
    same(literal, concat, x=words(2, 3, 6), memory=words(2, 4, 6))


def test_literal_scaled_dot_is_half_way_from_dot_to_cosine() -> None:
    """Dividing by √‖k‖ once more takes the length of the key away altogether."""
    literal, dot = make("scaled_dot_literal", heads=1), make("dot", heads=1)
    x, memory = words(2, 3, 6), words(2, 4, 6)
    norms = memory.norm(dim=-1)[:, None, None]
    torch.testing.assert_close(table(literal, x, memory), table(dot, x, memory) / norms.sqrt())
    torch.testing.assert_close(table(literal, x, memory) / norms.sqrt(), table(dot, x, memory) / norms)
    assert torch.isfinite(table(literal, x, 0 * memory)).all()


def test_without_a_key_strength_nothing_is_looked_at_sharply() -> None:
    """Of S keys one gets at most e² / (e² + S - 1): 28 % of 20."""
    literal, strong = make("cosine_literal", heads=1), make("cosine", heads=1)
    for attention in (literal, strong):
        become_identities(attention.score.query, attention.score.key)
    limit = math.e**2 / (math.e**2 + 19)
    assert limit < 0.281
    x = 50 * words(64, 1, 6)
    opposite = -x.expand(64, 20, 6).clone()
    opposite[:, 7:8] = x  # one key as near as can be, all others as far
    best = weigh(literal, x, opposite)[..., 7]
    torch.testing.assert_close(best, torch.full_like(best, limit))
    assert weigh(literal, x, 50 * words(64, 20, 6)).max() < limit
    nn.init.constant_(strong.score.strength, 9.0)  # type: ignore[arg-type]
    assert weigh(strong, x, opposite)[..., 7].min() > 0.99


def test_heads_need_no_output_matrix_where_an_affine_map_follows() -> None:
    """One lecture concatenates the heads and goes on; W_O folds into whatever matrix comes next."""
    attention, after = make("scaled_dot", bias=False), nn.Linear(6, 4).double()
    x, memory = words(2, 3, 6), words(2, 4, 6)
    wanted = after(attention(x, memory))
    with torch.no_grad():
        after.weight.copy_(after.weight @ attention.output.weight)  # type: ignore[operator]
    attention.output = nn.Identity()
    torch.testing.assert_close(after(attention(x, memory)), wanted, rtol=0, atol=1e-12)


# ------------------------------------------------------------------ the score that does not look


def located(positions: int, beyond: str = "ignore") -> Attention:
    return make(Location(6, 6, 2, positions=positions, beyond=beyond))


def test_location_does_not_look_at_the_memory() -> None:
    attention, x = located(8), words(2, 3, 6)
    assert torch.equal(weigh(attention, x, words(2, 5, 6)), weigh(attention, x, words(2, 5, 6)))
    assert not torch.equal(attention(x, words(2, 5, 6)), attention(x, words(2, 5, 6)))  # it reads it all the same


def test_location_uses_as_many_rows_as_there_are_keys() -> None:
    """Renormalised over the first S: shorter and padded are the same."""
    attention, x, memory = located(8), words(2, 3, 6), words(2, 7, 6)
    all_rows = attention.score.query(x).unflatten(-1, (2, 8)).transpose(1, 2)
    short, padded = (
        weigh(attention, x, memory[:, :5]),
        weigh(attention, x, memory, Mask(keys=torch.arange(7)[None] < 5)),
    )
    torch.testing.assert_close(short, all_rows[..., :5].softmax(-1), rtol=0, atol=1e-12)
    torch.testing.assert_close(padded[..., :5], short, rtol=0, atol=1e-12)
    assert not padded[..., 5:].any()


def test_keys_beyond_the_last_row_get_no_weight() -> None:
    attention, x, memory = located(4), words(2, 3, 6), words(2, 7, 6)
    weights = weigh(attention, x, memory)
    assert not weights[..., 4:].any()
    torch.testing.assert_close(weights[..., :4], weigh(attention, x, memory[:, :4]), rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(attention(x, memory).square().sum(), memory)
    assert not grad[:, 4:].any()


def test_a_query_that_sees_no_key_with_a_row_reads_nothing() -> None:
    """What is hidden and what lies beyond the table are two things, and neither has a share."""
    attention, x, memory = located(3), words(2, 4, 6), words(2, 6, 6)
    seen = torch.zeros(2, 4, 6, dtype=torch.bool)
    seen[:, 0, 3:5] = seen[:, 1, 3:] = True  # beyond alone
    seen[:, 2, 2:5] = True  # and one with a row; the last query sees nothing at all
    weights = weigh(attention, x, memory, Mask.of(seen))
    assert not weights[:, :, [0, 1, 3]].any()
    assert torch.equal(weights[:, :, 2], F.one_hot(torch.tensor(2), 6).double().expand(2, 2, 6))
    for grad in torch.autograd.grad(attention(x, memory, seen).square().sum(), [x, *attention.parameters()]):
        assert torch.isfinite(grad).all()


def test_keys_beyond_the_last_row_can_be_refused() -> None:
    attention, x = located(4, "refuse"), words(2, 3, 6)
    attention(x, words(2, 4, 6))
    sentence = (
        "a source of 5 tokens came, but score 'location' has rows for 4; shorten it, train with more positions, "
        "write beyond = \"ignore\", or take a score that looks, such as 'additive'"
    )
    with pytest.raises(DataError, match=f"^{sentence}$"):
        attention(x, words(2, 5, 6))


# ------------------------------------------------------------------ whole sequences, some queries at a time


@pytest.mark.parametrize("name", ["additive", "concat", "mlp", "concat_literal"])
@pytest.mark.parametrize("rows", [1, 3])
def test_some_queries_at_a_time_are_all_at_once(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In value and in every gradient."""
    attention, x, memory = make(name), words(2, 7, 6), words(2, 5, 6)
    wrt = [x, memory, *attention.score.parameters()]
    wanted = table(attention, x, memory)
    towards = torch.randn_like(wanted)
    wanted_gradients = torch.autograd.grad(wanted, wrt, towards)
    pieces = []
    energy = Additive.energy if name != "mlp" else module.MLP.energy

    def spy(score: Additive, q: Tensor, k: Tensor) -> Tensor:
        pieces.append(q.shape[-2])
        return energy(score, q, k)

    monkeypatch.setattr(type(attention.score), "energy", spy)
    monkeypatch.setattr(module, "CHUNK", rows * 2 * 2 * 5 * 3)  # B, H, K, D
    found = table(attention, x, memory)
    assert pieces == ([1] * 7 if rows == 1 else [3, 3, 1])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for ours, theirs in zip(torch.autograd.grad(found, wrt, towards), wanted_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


PEAK = '''
import resource, sys, torch
from pathlib import Path
from regard.core.attention import Attention

def peak():
    """Of this process: on Linux getrusage remembers its parent's peak too, and says nothing of its own."""
    if Path("/proc/self/status").exists():
        told = Path("/proc/self/status").read_text()
        return int(told.split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

torch.set_num_threads(1)
attention, x = Attention(64, score="additive"), torch.randn(1, 2048, 64)
attention(x[:, :8]).sum().backward()
before = peak()
attention(x).square().sum().backward()
print(peak() - before)
'''


def test_memory_is_bounded_where_2048_words_look_at_2048() -> None:
    """Forwards and backwards. The hidden layer as a whole would be 1 GiB, also where it is kept in pieces until the
    gradient comes."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=180, check=True)
    assert 2048 * 2048 * 4 < int(done.stdout) < 800e6  # at least the table of scores, which is wanted whole


# ------------------------------------------------------------------ at work


def block(name: str) -> Block:
    def attention() -> Attention:
        return make(name)

    return Block(attention(), FeedForward(6, 12), lambda: RESIDUALS["pre"](6), attention()).double()


@every_score
def test_every_score_works_in_a_transformers_block(name: str) -> None:
    """Causal and word by word: as with any other score, all at once is one after another."""
    one, x, memory = block(name), words(3, 5, 6), words(3, 5, 6)
    assert one.cross is not None
    kv, mask = one.cross.project(memory), Mask(keys=REAL)
    whole_pass, _ = one(x, Mask(causal=True), memory=kv, memory_mask=mask)
    past: KV | None = None
    pieces = []
    for piece in x.split([2, 1, 2], 1):
        y, past = one(piece, Mask(causal=True), past=past, memory=kv, memory_mask=mask)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole_pass, rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(whole_pass[:, 2].square().sum(), x)
    assert not grad[:, 3:].any()
    with regard.watch(one) as seen:
        one(x, Mask(causal=True), memory=kv, memory_mask=mask)
    for weights in (seen["attention"][0], seen["cross"][0]):
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5, dtype=torch.float64))


@every_score
@pytest.mark.parametrize("values", ["memory", "projected"])
@torch.no_grad()
def test_packing_changes_no_answer(name: str, values: str) -> None:
    """Whichever of query, key and value are projected, with whichever biases."""
    attention, x = make(name, values=values), torch.randn(2, 4, 6, dtype=torch.float64)
    before = attention(x)
    torch.testing.assert_close(pack(attention).inward(x)[0], before, rtol=0, atol=1e-12)


def test_hypotheses_share_a_memory_under_a_mask_that_is_the_same_for_all() -> None:
    attention, x, memory = make("scaled_dot"), words(6, 3, 6), words(2, 5, 6)
    mask = Mask(pairs=torch.rand(1, 1, 3, 5) < 0.6)
    shared, copied = attention.project(memory), attention.project(memory.repeat_interleave(3, 0))
    with regard.watch(attention) as seen:
        torch.testing.assert_close(attention.look(x, shared, mask), attention.look(x, copied, mask))
    torch.testing.assert_close(*seen[""])


class Distance(Score):
    """A score of one's own: the nearer the better."""

    def __init__(self, dim: int) -> None:
        super().__init__(nn.Linear(dim, dim), nn.Linear(dim, dim))

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:
        return -torch.cdist(q, k)


class Reader(nn.Module):
    """Somebody's model that knows nothing of Regard but one class: an LSTM whose last state looks back."""

    def __init__(self, score: str | Score) -> None:
        super().__init__()
        self.reader = nn.LSTM(4, 16, batch_first=True)
        self.attention = regard.Attention(dim=16, score=score, heads=1)
        self.answer = nn.Linear(16, 1)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        memory, (last, _) = self.reader(x)
        query = last.transpose(0, 1)
        looked = self.attention(query, memory) if real is None else self.attention(query, memory, Mask(keys=real))
        return self.answer(looked)[:, 0, 0]


@pytest.mark.parametrize("score", [*EIGHT, "one's own"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_every_score_trains_in_a_foreign_model(score: str, padded: bool) -> None:
    model, x = Reader(Distance(16) if score == "one's own" else score), torch.randn(16, 5, 4)
    real = torch.arange(5) < torch.randint(2, 6, (16, 1)) if padded else None
    wanted, losses = x[:, 1, 0], []
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(25):
        loss = F.mse_loss(model(x, real), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    before = model(x, real)
    with regard.watch(model) as seen:
        assert torch.equal(model(x, real), before)
    (weights,) = seen["attention"]
    assert weights.shape == (16, 1, 1, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(16, 1, 1))
    assert real is None or not weights[:, 0, 0][~real].any()


def test_a_mask_that_hides_nothing_is_no_mask() -> None:
    model, x = Reader("additive"), torch.randn(3, 5, 4)
    torch.testing.assert_close(model(x), model(x, torch.ones(3, 5, dtype=torch.bool)))
    assert not torch.allclose(model(x), model(x, REAL))


def test_the_page_about_attention_keeps_its_word() -> None:
    """Its Python is one program, read from top to bottom, and its table names every score."""
    page = (ROOT / "docs" / "attention.md").read_text("utf-8")
    names: dict[str, Any] = {}
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(programs) > 3
    for text in programs:
        exec(compile(text, "attention.md", "exec"), names)
    assert set(re.findall(r"^\| `\"(\w+)\"` \|", page, re.MULTILINE)) == set(SCORES)


# ------------------------------------------------------------------ what does not fit


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"score": "dot", "memory_dim": 6},
            "score 'dot' compares equal widths, but queries have 8 and keys 6; "
            "'general' brings the query to the keys' width, 'scaled_dot' projects both",
        ),
        (
            {"score": "scaled_dot_literal", "memory_dim": 6},
            "score 'scaled_dot_literal' compares equal widths, but queries have 8 and keys 6; "
            "'general' brings the query to the keys' width, 'scaled_dot' projects both",
        ),
        (
            {"score": "general", "memory_dim": 5, "heads": 2},
            "score 'general' shares the memory's width of 5 among its heads, but came with heads=2; "
            "try heads=1, or 'scaled_dot', which projects it",
        ),
        (
            {"score": "location", "memory_dim": 7, "heads": 4},
            "score 'location' shares the memory's width of 7 among its heads, but came with heads=4; "
            "try heads=1, or 'scaled_dot', which projects it",
        ),
        (
            {"score": "concat_literal", "memory_dim": 9, "heads": 2},
            "score 'concat_literal' shares the memory's width of 9 among its heads, but came with heads=2; "
            "try heads=1, or 'scaled_dot', which projects it",
        ),
        ({"score": "additve"}, r"score 'additve' is not known; did you mean 'additive'\?"),
        ({"values": "projectd"}, r"values='projectd' is not known; did you mean 'projected'\?"),
        ({"values": "raw"}, "values='raw' is not known; known: memory, projected"),
        (
            {"score": "additive", "values": "memory", "memory_dim": 7, "heads": 2},
            "a memory 7 wide does not divide into heads=2; project the values",
        ),
        ({"heads": 0}, "heads=0 came, but a whole number from 1 on is wanted; write heads=1 for a single one"),
        ({"heads": -2}, "heads=-2 came, but a whole number from 1 on is wanted; write heads=1 for a single one"),
        (
            {"memory_dim": 0},
            "memory_dim=0 came, but a whole number from 1 on is wanted; "
            "leave it out where the memory is as wide as the queries",
        ),
        ({"dim": 0}, "dim=0 came, but a whole number from 1 on is wanted; write the width of your queries"),
        (
            {"score": None},
            "score=None came, but a name or an instance is wanted; "
            r"write score='scaled_dot', or score=ScaledDot\(8, 8, heads=1\)",
        ),
        (
            {"score": Additive, "heads": 2, "memory_dim": 6},
            "score=<class 'regard.core.score.Additive'> came, but a name or an instance is wanted; "
            r"write score='scaled_dot', or score=Additive\(8, 6, heads=2\)",
        ),
        *(
            (
                {"score": SCORES[name](8, 8, 1), "heads": 4},
                r"score \w+ was built for heads=1, but the attention has heads=4; build both with the same number",
            )
            for name in ("additive", "concat", "mlp", "cosine", "location", "concat_literal")
        ),
        (
            {"score": Additive(6, 8)},
            "score Additive was built for queries 6 wide, but the attention's are 8; build both with the same widths",
        ),
        (
            {"score": Additive(8, 8), "memory_dim": 6},
            "score Additive was built for keys 8 wide, but the attention's are 6; build both with the same widths",
        ),
    ],
)
def test_what_does_not_fit_is_told_so(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        Attention(**{"dim": 8, **settings})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"positions": 0}, "positions=0 leaves score 'location' no key to look at; write 1 or more"),
        ({"beyond": "refus"}, r"beyond='refus' is not known; did you mean 'refuse'\?"),
    ],
)
def test_a_table_that_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        Location(8, 8, **settings)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "general", "scaled_dot_literal", "cosine_literal"])
def test_a_score_without_anything_for_each_head_serves_any_number_of_them(name: str) -> None:
    x, attention = torch.randn(2, 3, 8), Attention(8, score=SCORES[name](8, 8), heads=4)
    assert attention(x).shape == (2, 3, 8)


@every_score
@pytest.mark.parametrize(
    ("x", "memory", "sentence"),
    [
        ((2, 3, 8), (2, 5, 6), "a memory of shape (2, 5, 6) came, but (batch, words, 8) is wanted; write memory_dim=6"),
        ((2, 3, 6), None, "queries of shape (2, 3, 6) came, but (batch, words, 8) is wanted; write dim=6"),
        ((2, 3, 6), (2, 5, 8), "queries of shape (2, 3, 6) came, but (batch, words, 8) is wanted; write dim=6"),
        (
            (3, 8),
            None,
            "queries of shape (3, 8) came, but (batch, words, 8) is wanted; "
            "put the batch first, also where it is a batch of one",
        ),
        (
            (1, 3, 8),
            (5, 8),
            "a memory of shape (5, 8) came, but (batch, words, 8) is wanted; "
            "put the batch first, also where it is a batch of one",
        ),
    ],
)
def test_what_comes_in_another_shape_is_told_so(
    name: str, x: tuple[int, ...], memory: tuple[int, ...] | None, sentence: str
) -> None:
    attention = Attention(8, score=name, heads=2)
    if name in EQUAL_WIDTHS and "memory_dim" in sentence:
        sentence += " and score='general', which brings the query to the keys' width, or 'scaled_dot'"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        attention(torch.randn(x), None if memory is None else torch.randn(memory))


@torch.no_grad()
def test_whoever_looks_is_told_so() -> None:
    """By each of the verbs, and in the one product of a packed attention."""
    attention, wrong = pack(Attention(8, heads=2)), torch.randn(2, 3, 6)
    kv = attention.project(torch.randn(2, 3, 8))
    verbs: list[Callable[[], object]] = [
        lambda: attention.look(wrong, kv),
        lambda: attention.weigh(wrong, kv),
        lambda: attention.inward(wrong),
    ]
    for verb in verbs:
        with pytest.raises(ValueError, match=r"^queries of shape \(2, 3, 6\) came, but \(batch, words, 8\) is wanted"):
            verb()


@pytest.mark.parametrize("name", sorted(set(SCORES) - EQUAL_WIDTHS))
@pytest.mark.parametrize("values", ["memory", "projected"])
def test_what_is_read_is_as_wide_as_it_says(name: str, values: str) -> None:
    attention = make(name, dim=6, memory_dim=8, values=values)
    assert attention(words(2, 3, 6), words(2, 4, 8)).shape == (2, 3, attention.width)
    assert attention.width == (8 if values == "memory" else 6)


@pytest.mark.parametrize(
    ("score", "how", "said"),
    [
        (lambda: Dot(16, 16), {"memory_dim": 24}, r"score Dot compares queries 16 wide with keys 24 wide"),
        (lambda: General(16, 24), {}, r"score General compares queries 24 wide with keys 16 wide"),
        (lambda: ConcatLiteral(16, 24), {}, r"build it for this attention: ConcatLiteral\(16, 16, heads=1\)"),
        (lambda: Additive(16, 16, heads=3), {}, r"dim=16 does not divide into heads=3"),
    ],
)
def test_a_score_that_was_built_for_other_widths_is_refused(
    score: Callable[[], Score], how: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Attention(16, score=score(), **how)
