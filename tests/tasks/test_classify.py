"""Classification: each kind of question by its formula, for systems that read and systems that write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.config.task import ClassifyTask
from regard.core.head import Loss
from regard.data.labelled import Example
from regard.data.layout import Layout, for_decoder, for_encoder
from regard.data.readings import Batch, Readings
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics import Measure
from regard.models import build, schema
from regard.tasks.classify import Classify, Question, arrangement, classify, embed, measured, rate, states, tell

WORDS = [f"w{number}" for number in range(12)]
TOKENIZER = Tokenizer.train([" ".join(WORDS)], kind="word", size=40, marks=("delimiter", "extract"))
FRAMES = {"bert": for_encoder, "gpt": for_decoder, "recurrent": for_decoder}
SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {"dim": 16, "heads": 2, "layers": 1, "hidden": 32, "context": 40, "head": "sentence"},
    "gpt": {"dim": 16, "heads": 2, "layers": 1, "context": 40},
    "recurrent": {"dim": 16, "embedding": 16, "layers": 1},
}
LABELS = ("no", "perhaps", "yes")


def words(chance: np.random.Generator, most: int = 9) -> str:
    return " ".join(chance.choice(WORDS, chance.integers(1, most)))


def examples(count: int, texts: int, labels: tuple[str, ...] = LABELS, seed: int = 0) -> list[Example]:
    chance = np.random.default_rng(seed)
    return [
        Example(n, tuple(words(chance) for _ in range(texts)), str(chance.choice(labels)) if labels else str(n / 8))
        for n in range(count)
    ]


def model_of(system: str, outputs: int, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    settings = {**SETTINGS[system], "dropout": dropout, "vocab": TOKENIZER.size, "labels": outputs}
    model = build(system, schema(system)(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from the small numbers of a beginning, where all is alike
            parameter += 0.1 * torch.randn_like(parameter)
    return model


class Case:
    """A task of a kind, with its data, for a system."""

    def __init__(
        self, folder: Path, system: str, texts: int, labels: tuple[str, ...] = LABELS, **settings: Any
    ) -> None:
        self.system, task = system, ClassifyTask(**settings)
        layout = Layout(FRAMES[system], arrangement(task, texts), TOKENIZER.marks, 24)
        self.question = Question(task.kind, texts, labels, layout)
        self.examples = {"train": examples(30, texts, labels), "valid": examples(17, texts, labels, seed=1)}
        stored = {
            split: Readings.build(folder / split, some, labels, TOKENIZER, layout, bad=BadLines())
            for split, some in self.examples.items()
        }
        self.task = Classify(self.question, stored["train"], {"valid": stored["valid"]}, tokens=256, seed=0, task=task)
        self.model = model_of(system, self.question.outputs)

    def whole(self) -> Loss:
        return self.task.loss(self.model, self.task.train.batch(np.arange(30)), None)


KINDS: dict[str, dict[str, Any]] = {
    "one text": {"texts": 1},
    "a pair": {"texts": 2},
    "a similar pair": {"texts": 2, "similar": True},
    "a number": {"texts": 1, "kind": "number", "labels": ()},
    "a choice": {"texts": 4, "kind": "choice"},
}


@pytest.fixture(scope="module", params=[(system, kind) for system in SETTINGS for kind in KINDS], ids=" ".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    system, kind = request.param
    return Case(tmp_path_factory.mktemp("classify"), system, **KINDS[kind])


def told(case: Case, split: str) -> list[Tensor]:
    """What the model says of each example when it reads it alone: probabilities, or a number."""
    texts = [example.texts for example in case.examples[split]]
    if case.question.kind == "number":
        return [torch.tensor(rate(case.model, TOKENIZER, case.question, [some])) for some in texts]
    found = [classify(case.model, TOKENIZER, case.question, [some])[0].probabilities for some in texts]
    return [torch.tensor([one[label] for label in LABELS]) for one in found]


@torch.inference_mode()
def test_the_loss_is_the_sum_over_examples_read_alone(case: Case) -> None:
    loss, said = case.whole(), told(case, "train")
    wanted = [example.label for example in case.examples["train"]]
    if case.question.kind == "number":
        alone = [float((one - float(label)) ** 2) for one, label in zip(said, wanted, strict=True)]
    else:
        alone = [-float(one[LABELS.index(label)].log()) for one, label in zip(said, wanted, strict=True)]
    assert loss.total.item() == pytest.approx(sum(alone), rel=1e-4)
    assert loss.count == 30
    assert len(set(alone)) == 30, "examples that are all alike would prove nothing"


def test_measures_are_of_what_is_told(case: Case) -> None:
    found, said = case.task.evaluate(case.model, "valid"), told(case, "valid")
    assert tuple(found) == measured(case.task.settings)
    assert case.task.evaluate(case.model, "test") == {}
    wanted = [example.label for example in case.examples["valid"]]
    if case.question.kind == "number":
        x, y = torch.cat(said), torch.tensor([float(label) for label in wanted])
        assert found["pearson"] == pytest.approx(100 * float(torch.corrcoef(torch.stack([x, y]))[0, 1]), rel=1e-3)
    else:
        hits = [LABELS[int(one.argmax())] == label for one, label in zip(said, wanted, strict=True)]
        assert found["accuracy"] == pytest.approx(100 * sum(hits) / len(hits))
    assert all(isinstance(measure, Measure) and "17" in measure.definition for measure in found.values())
    alone = copy.copy(case.task)
    alone.tokens = 1
    assert alone.evaluate(case.model, "valid") == pytest.approx(found, rel=1e-4)


def test_every_example_is_learnt_from_once_an_epoch_and_any_step_can_be_asked_for(case: Case) -> None:
    task = case.task
    steps = next(step for step in range(1, 99) if task.epoch(step) == 1)
    for world in (1, 2):
        seen = [
            task.batch("train", step, rank, world).ids for step in range(-(-steps // world)) for rank in range(world)
        ]
        assert sorted(line for ids in seen[:steps] for line in ids) == [*range(30)]
    again = [task.batch("train", step).ids for step in reversed(range(3 * steps))][::-1]
    assert again == [task.batch("train", step).ids for step in range(3 * steps)]
    assert again[:steps] != again[steps : 2 * steps]
    assert all(task.batch("train", step).sequences.numel() <= 256 for step in range(steps))
    with pytest.raises(ValueError, match="only training draws batches by step; 'valid' is read in order"):
        task.batch("valid", 0)


def test_order_and_company_do_not_change_an_answer(case: Case) -> None:
    texts = [example.texts for example in case.examples["valid"]]
    ask: Any = rate if case.question.kind == "number" else classify
    for tokens in (1, 4096):
        found = ask(case.model, TOKENIZER, case.question, texts, tokens=tokens)
        turned = ask(case.model, TOKENIZER, case.question, texts[::-1], tokens=tokens)[::-1]
        if case.question.kind == "number":
            assert found == pytest.approx(turned, rel=1e-4)
        else:
            assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in found)
            assert all(
                one.probabilities == pytest.approx(two.probabilities, rel=1e-4)
                for one, two in zip(found, turned, strict=True)
            )
            assert all(max(one.probabilities, key=lambda name: one.probabilities[name]) == one.label for one in found)
    assert ask(case.model, TOKENIZER, case.question, []) == []


def with_weight(case: Case, weight: float) -> Case:
    """The same with another λ."""
    case = copy.copy(case)
    case.task = copy.copy(case.task)
    case.task.settings = case.task.settings.model_copy(update={"auxiliary": weight})
    return case


def gradients(case: Case, *batches: np.ndarray) -> list[Tensor]:
    case.model.zero_grad()
    for places in batches:
        case.task.loss(case.model, case.task.train.batch(places), None).total.backward()
    return [parameter.grad for parameter in case.model.parameters() if parameter.grad is not None]


def test_micro_batches_add_up_to_one_batch(case: Case) -> None:
    everything = np.arange(30)
    whole = [grad.clone() for grad in gradients(case, everything)]
    torch.testing.assert_close(gradients(case, *np.array_split(everything, [3, 4, 20])), whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("system", SETTINGS)
def test_a_similar_pair_has_no_order_and_an_ordinary_one_has(tmp_path: Path, system: str) -> None:
    pairs = [example.texts for example in examples(20, 2)]
    for similar in (True, False):
        case = Case(tmp_path, system, 2, kind="number", labels=(), similar=similar)
        here, there = (
            rate(case.model, TOKENIZER, case.question, some) for some in (pairs, [pair[::-1] for pair in pairs])
        )
        assert (here == pytest.approx(there, rel=1e-5, abs=1e-6)) == similar


@pytest.mark.parametrize("system", SETTINGS)
def test_choices_are_told_by_what_they_say_and_not_by_where_they_stand(tmp_path: Path, system: str) -> None:
    case = Case(tmp_path, system, 4, kind="choice")
    first, a, b, c = case.examples["train"][0].texts
    here, there = classify(case.model, TOKENIZER, case.question, [(first, a, b, c), (first, c, a, b)])
    assert [*here.probabilities.values()] == pytest.approx(
        [there.probabilities[name] for name in ("perhaps", "yes", "no")]
    )


# ---- learning to write meanwhile


@pytest.fixture(params=["gpt", "recurrent"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(tmp_path, request.param, 2)


def test_without_weight_it_is_the_plain_classifier_bit_for_bit(writer: Case) -> None:
    writer.model = model_of(writer.system, 3, dropout=0.3)

    def plain(model: nn.Module, batch: Batch) -> Tensor:
        """The classifier as one would write it, without a task."""
        hidden, _ = model(None, None, batch.sequences)
        logits = model.labels(hidden[torch.arange(len(hidden)), batch.summaries])  # type: ignore[operator]
        return nn.functional.cross_entropy(logits, batch.wanted, reduction="none").sum()

    def weighted(weight: float) -> Callable[[nn.Module, Batch], Tensor]:
        return lambda model, batch: with_weight(writer, weight).task.loss(model, batch, None).total

    def learnt(loss: Callable[[nn.Module, Batch], Tensor]) -> list[Tensor]:
        model = copy.deepcopy(writer.model).train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(0)
        for step in range(3):
            optimizer.zero_grad()
            loss(model, writer.task.batch("train", step)).backward()
            optimizer.step()
        return [*model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(learnt(plain), learnt(weighted(0.0)), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(learnt(plain), learnt(weighted(0.5)), strict=True))


@torch.inference_mode()
def test_the_weight_is_that_of_the_mean_loss_a_token(writer: Case) -> None:
    told, loss = with_weight(writer, 0.0).whole(), with_weight(writer, 0.5).whole()
    surprise = []
    for reading in (reading for e in writer.examples["train"] for reading in _readings(writer, e)):
        tokens = torch.tensor([reading])
        hidden, _ = writer.model(None, None, tokens[:, :-1])
        surprise += (-writer.model.head.logprobs(hidden, tokens[:, 1:]))[0].tolist()  # type: ignore[union-attr, operator]
    mean = sum(surprise) / len(surprise)
    assert loss.total.item() / 30 == pytest.approx(told.total.item() / 30 + 0.5 * mean, rel=1e-4)
    assert loss.parts["telling"].item() == pytest.approx(told.total.item())
    assert loss.parts["writing"].item() / 30 == pytest.approx(mean, rel=1e-4)


def _readings(case: Case, example: Example) -> list[list[int]]:
    return [r.tokens for r in case.question.layout([TOKENIZER.encode(text) for text in example.texts])]


def test_a_system_that_only_reads_cannot_learn_to_write(tmp_path: Path) -> None:
    case = Case(tmp_path, "bert", 1, auxiliary=0.5)
    with pytest.raises(
        ConfigError, match=r"task.auxiliary is for systems that write, such as gpt, and this one does not"
    ):
        case.whole()


# ---- learning


@pytest.mark.parametrize("system", SETTINGS)
def test_what_a_text_says_can_be_learnt(tmp_path: Path, system: str) -> None:
    """Which of two words is in the text: no system fails at that."""
    chance, labels = np.random.default_rng(0), ("no", "yes")
    settings = ClassifyTask(measures=("accuracy", "f1", "matthews"))
    layout = Layout(FRAMES[system], arrangement(settings, 1), TOKENIZER.marks, 24)

    def stored(name: str, count: int) -> Readings:
        texts = [" ".join([WORDS[n % 2], *chance.choice(WORDS[2:], chance.integers(0, 4))]) for n in range(count)]
        some = [Example(n, (text,), labels[n % 2]) for n, text in enumerate(texts)]
        return Readings.build(tmp_path / name, some, labels, TOKENIZER, layout, bad=BadLines())

    held, question = {"valid": stored("valid", 20)}, Question("label", 1, labels, layout)
    task = Classify(question, stored("train", 60), held, tokens=256, seed=0, task=settings)
    model = model_of(system, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(40):
        loss = task.loss(model, task.batch("train", step), None)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    found = task.evaluate(model, "valid")
    assert [found[name] for name in settings.measures] == pytest.approx([100, 100, 100])
    assert "of the label 'yes'" in found["f1"].definition  # type: ignore[attr-defined]


# ---- vectors


@pytest.mark.parametrize("system", ["bert", "gpt"])
def test_a_vector_is_the_mean_over_the_tokens_of_a_text_whatever_stands_beside_it(system: str) -> None:
    model = model_of(system, 2)
    texts = [text for example in examples(9, 1) for text in example.texts]
    together = embed(model, TOKENIZER, texts, longest=24, normalise=False)
    for text, vector in zip(texts, together, strict=True):
        tokens = torch.tensor([[TOKENIZER.marks.begin, *TOKENIZER.encode(text), TOKENIZER.marks.end]])
        with torch.inference_mode():
            hidden = model(tokens) if system == "bert" else model(None, None, tokens)[0]
        torch.testing.assert_close(vector, hidden[0].mean(0), rtol=1e-4, atol=1e-5)
        if system == "bert":
            first = embed(model, TOKENIZER, [text], longest=24, pooling="first", normalise=False)
            torch.testing.assert_close(first[0], hidden[0, 0], rtol=1e-4, atol=1e-5)
    unit = embed(model, TOKENIZER, texts, longest=24, tokens=1)
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(9))
    torch.testing.assert_close(unit, together / together.norm(dim=-1, keepdim=True), rtol=1e-4, atol=1e-5)
    assert len(embed(model, TOKENIZER, [], longest=24)) == 0


def test_poolings_that_are_none() -> None:
    with pytest.raises(ConfigError, match='pooling = "max" is not known; write "mean" or "first"'):
        embed(model_of("bert", 2), TOKENIZER, ["w1"], longest=24, pooling="max")
    with pytest.raises(
        ConfigError, match='"first" says nothing of a system whose first token sees no other; write "mean"'
    ):
        embed(model_of("gpt", 2), TOKENIZER, ["w1"], longest=24, pooling="first")


# ---- what does not fit


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"texts": 1, "labels": ("no",)}, "data.labels names 1, and there is nothing to tell; write two or more"),
    (
        {"texts": 2, "kind": "choice"},
        'task.kind = "choice", but data.texts names 2 of them; name what comes first, then',
    ),
    ({"texts": 3}, 'task.kind = "label", but data.texts names 3 of them; name one text or a pair, or write task.kind'),
    (
        {"texts": 1, "similar": True},
        "task.similar is of the two texts of a pair, but data.texts names one; write similar",
    ),
    (
        {"texts": 1, "measures": ("pearson",)},
        'pearson is not measured where task.kind = "label"; write accuracy or f1 or',
    ),
    (
        {"texts": 1, "labels": (), "kind": "number", "measures": ("f1",)},
        "f1 is not measured .*; write pearson or spearman",
    ),
    ({"texts": 1, "measures": ("f1",)}, "task.measures: f1 is of two labels, and there are 3; write accuracy"),
    (
        {"texts": 3, "kind": "choice"},
        "data.texts names 2 choices, but the labels are no, perhaps, yes; write data.labels",
    ),
]


@pytest.mark.parametrize(("how", "sentence"), WRONG)
def test_what_does_not_fit(tmp_path: Path, how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Case(tmp_path, "bert", **how)


def test_an_input_of_other_texts(tmp_path: Path) -> None:
    case = Case(tmp_path, "bert", 2)
    with pytest.raises(
        DataError, match="input 2: 1 text, but this model was trained on 2; give as many, in the order of"
    ):
        classify(case.model, TOKENIZER, case.question, [("w1", "w2"), ("w1",)])


def test_the_similar_summaries_are_added(tmp_path: Path) -> None:
    case = Case(tmp_path, "gpt", 2, similar=True)
    batch = case.task.train.batch(np.arange(5))
    with torch.inference_mode():
        hidden = states(case.model, batch)
        summary = case.model.summary(hidden, batch.summaries)  # type: ignore[operator]
        wanted = case.model.labels(summary[0::2] + summary[1::2])  # type: ignore[operator]
        torch.testing.assert_close(tell(case.model, hidden, batch, "label"), wanted)
