"""A loaded run answers as before in fp32, and nearly so in int8, by whatever way it is asked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from regard.core.watch import watch
from regard.data.spoken import spoken
from regard.errors import ConfigError
from regard.fast import Unbuilt, kernels, prepare
from regard.interop.engine import on_cpu
from regard.models import bert, gpt, seq2seq
from regard.pipeline import load
from regard.pipeline.rewrite import load_rewriter
from regard.view import contract
from tests.tiny import trained

pytestmark = pytest.mark.usefixtures("accelerator")


def texts(count: int = 24) -> list[str]:
    return [source for _, source, _ in spoken(("en", "de"), "valid", count)]


@pytest.mark.parametrize("how", [{}, {"beam": 3, "nbest": 2}, {"beam": 2, "shortest": 3, "prefixes": ["z"] * 24}])
def test_a_run_answers_as_without_it(how: dict[str, Any]) -> None:
    run = load_rewriter(trained())
    quick = run.answer(texts(), **how)
    assert run.model.writer.latest.found is not None, "it was not asked"
    run.model.writer = None
    for ours, theirs in zip(quick, run.answer(texts(), **how), strict=True):
        assert ours.texts == theirs.texts
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("how", [{"sample": True}, {"coverage": 0.2, "beam": 2}, {"block_ngram": 2}])
def test_what_only_the_plain_search_can_do_is_left_to_it(how: dict[str, Any]) -> None:
    run = load_rewriter(trained())
    run.answer(texts(3), **how)
    assert run.model.writer.latest.found is None


def test_in_int8_a_run_answers_nearly_as_it_did() -> None:
    """Those whose scores are near are most; the tiny run is unsure of many."""
    exact, rough = (load_rewriter(trained(), arithmetic=name) for name in ("fp32", "int8"))
    pairs = zip(exact.answer(texts()), rough.answer(texts()), strict=True)
    alike = [(a.hypotheses[0], b.hypotheses[0]) for a, b in pairs if a.texts == b.texts]
    assert len(alike) >= 18
    assert max(abs(a.logprob - b.logprob) for a, b in alike) < 1.0
    assert any(a.logprob != b.logprob for a, b in alike)


@pytest.mark.parametrize("how", [{"beam": 1}, {"beam": 3}, {"sample": True, "top_p": 0.9}])
def test_in_bf16_a_run_answers_and_shows_nearly_what_it_did(how: dict[str, Any]) -> None:
    run, texts_ = load_rewriter(trained(), arithmetic="bf16"), texts(4)
    assert {weight.dtype for weight in run.model.parameters()} == {torch.bfloat16}
    exact = load_rewriter(trained()).answer(texts_, **how)
    for one, other in zip(run.answer(texts_, **how), exact, strict=True):
        if one.texts == other.texts:
            assert one.hypotheses[0].logprob == pytest.approx(other.hypotheses[0].logprob, abs=0.5, rel=0.1)
    trace = run.look(texts_[0])
    assert all(abs(weights.sum(-1) - 1).max() < 1e-2 for weights in trace.maps.values())
    name = next(iter(trace.parts))
    assert contract.arithmetic(trace, name, 0, 0)


@pytest.mark.parametrize("beam", [1, 3])
def test_in_int8_watching_changes_next_to_nothing(beam: int) -> None:
    """Where a number lies between two whole ones, another order of a sum may round it to the other, now and then."""
    run = load_rewriter(trained(), arithmetic="int8")
    alone = run.answer(texts(60), beam=beam)
    with watch(run.model):
        watched = run.answer(texts(60), beam=beam)
    off = [abs(a.hypotheses[0].logprob - b.hypotheses[0].logprob) for a, b in zip(alone, watched, strict=True)]
    assert sum(a.texts == b.texts for a, b in zip(alone, watched, strict=True)) >= 58
    assert sorted(off)[50] < 1e-4


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: bert.Bert(bert.Config(vocab=30, dim=64, heads=4, layers=2, hidden=128)), lambda m, t: m(t)),
        (lambda: gpt.GPT(gpt.Config(vocab=30, dim=64, heads=4, layers=2)), lambda m, t: m.step(t, m.start())[0]),
        (
            lambda: seq2seq.Seq2Seq(seq2seq.Config(vocab=30, dim=32, embedding=32)),
            lambda m, t: m.step(t[:, :1], m.start(t))[0],
        ),
    ],
)
def test_in_int8_every_system_computes_nearly_the_same_and_each_row_by_itself(
    model: Callable[[], Any], said: Callable[[Any, Any], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    system, tokens = model().eval(), torch.randint(4, 30, (5, 6))
    with torch.inference_mode():
        right = said(system, tokens)
        found = said(prepare(system, "int8"), tokens)
        assert 0 < float((found - right).std() / right.std()) < 0.1
        torch.testing.assert_close(said(system, tokens[2:3]), found[2:3], atol=1e-5, rtol=1e-5)


def small_bert() -> bert.Bert:
    torch.manual_seed(0)
    return bert.Bert(bert.Config(vocab=30, dim=64, heads=4, layers=2, hidden=128, head="pretrain")).eval()


def test_a_copy_of_a_model_in_int8_is_in_int8(tmp_path: Path) -> None:
    model, tokens = prepare(small_bert(), "int8"), torch.randint(4, 30, (5, 6))
    torch.save(model, tmp_path / "model.pt")
    with torch.inference_mode():
        right = model(tokens)
        assert torch.equal(copy.deepcopy(model)(tokens), right)
        assert torch.equal(torch.load(tmp_path / "model.pt", weights_only=False)(tokens), right)
        assert not torch.equal(prepare(copy.deepcopy(model))(tokens), right)


def test_a_copy_of_a_run_in_int8_answers_alike() -> None:
    run = load_rewriter(trained(), arithmetic="int8")
    ours, theirs = ([one.hypotheses for one in any_of.answer(texts())] for any_of in (run, copy.deepcopy(run)))
    assert ours == theirs


def test_what_was_loaded_in_int8_is_exported_as_it_is() -> None:
    model, tokens = small_bert(), torch.randint(4, 30, (3, 9))
    with torch.inference_mode():
        right = model(tokens)
        torch.testing.assert_close(on_cpu(prepare(model, "int8"))(tokens), right, atol=1e-5, rtol=1e-5)


class Seen(TorchDispatchMode):
    """Counts products."""

    products = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Counts products as they are asked for."""

    products = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += function is torch.nn.functional.linear
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("arithmetic", ["fp32", "int8"])
@pytest.mark.parametrize("mode", [Seen, Called])
def test_whoever_counts_operations_sees_those_of_the_model(mode: type[Seen | Called], arithmetic: str) -> None:
    tokens, counts = torch.randint(4, 30, (3, 9)), []
    for model in (small_bert(), prepare(small_bert(), arithmetic)):
        with torch.no_grad(), mode() as seen:
            model(tokens)
        counts.append(seen.products)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("arithmetic", ["fp32", "int8"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_trace_is_of_the_model(arithmetic: str) -> None:
    model, (first, then) = small_bert(), torch.randint(4, 30, (2, 3, 9))
    with torch.no_grad():
        traced = torch.jit.trace(prepare(copy.deepcopy(model), arithmetic), (first,), check_trace=False)
        torch.testing.assert_close(traced(then), model(then))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_transformed_model_is_transformed() -> None:
    model, tokens = small_bert(), torch.randint(4, 30, (5, 3, 9))
    with torch.no_grad():
        found = torch.vmap(prepare(copy.deepcopy(model)))(tokens)
        torch.testing.assert_close(found, torch.stack([model(some) for some in tokens]), atol=1e-5, rtol=1e-5)


def test_a_device_for_what_is_made_is_no_reason_to_step_aside() -> None:
    model, tokens = prepare(small_bert()), torch.randint(4, 30, (3, 9))
    with torch.inference_mode(), torch.device("cpu"):
        model(tokens)
    assert model.encoder.reader.latest.found is not None


def test_what_it_is_asked_for_and_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="arithmetic: 'int9' is not known; did you mean 'int8'"):
        load(trained(), arithmetic="int9")

    def none() -> None:
        raise Unbuilt("there is no compiler; install one")

    monkeypatch.setattr("regard.fast.library", none)
    load(trained())
    with pytest.raises(Unbuilt, match="there is no compiler; install one"):
        load(trained(), arithmetic="int8")
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    meta = bert.Bert(bert.Config(vocab=30, dim=64, heads=4, layers=1)).to("meta")
    monkeypatch.setattr("regard.fast.library", lambda: None)
    with pytest.raises(ConfigError, match=r"int8 is for CPUs and, .* for CUDA, but the model is on meta"):
        prepare(meta, "int8")


def test_the_command_line_takes_it(said: Callable[..., str], told: Callable[..., str]) -> None:
    run, text = trained(), texts(1)[0]
    assert said("predict", run, text, "--arithmetic", "int8").strip()
    assert "int8" in told(2, "predict", run, text, "--arithmetic", "int7")


def test_a_score_in_int8_is_not_the_runs_own(said: Callable[..., str]) -> None:
    run = Path(trained())
    before = (run / "evaluation.json").read_bytes()
    said("evaluate", run, "--arithmetic", "int8", "--json")
    assert (run / "evaluation.json").read_bytes() == before
