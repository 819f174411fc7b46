"""Language modelling: what is learnt is what is scored, and what is written does not depend on who else writes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import active_count
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from regard.config import DecodeConfig, merge, read_toml
from regard.core.autoregressive import Autoregressive
from regard.core.state import State
from regard.data import maps, music
from regard.data.stream import Piece, Stream
from regard.data.tokenizer import EOS, UNK, Tokenizer
from regard.errors import ConfigError, DataError
from regard.interop.hf import numbers
from regard.models.gpt import GPT, Config
from regard.recipes import find_recipe
from regard.tasks import Task
from regard.tasks.continuing import by_shots, continuations, few_shot, generate, score, streamed
from regard.tasks.language import Language, measure

TEXT = "the cat sat on the mat and the dog sat on the log; déjà vu in 東京, twice 😀 "
HOWS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3, "nbest": 2},
    "sample": {"sample": True, "seed": 3},
    "several": {"sample": True, "nbest": 2, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "temperature": 1.5},
    "blocked": {"beam": 1, "block_ngram": 2, "shortest": 9},
}


def gpt(vocab: int, context: int = 24) -> GPT:
    """Random weights, large enough that it has opinions."""
    torch.manual_seed(0)
    model = GPT(Config(vocab=vocab, dim=32, heads=2, layers=2, context=context, dropout=0, attention_dropout=0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    return model.eval()


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer.train([TEXT], kind="char", size=100)


@pytest.fixture(scope="module")
def spelt() -> Tokenizer:
    """So few merges that most characters beyond ASCII take several tokens."""
    return Tokenizer.train([TEXT], kind="bpe", size=270)


@pytest.fixture
def model(letters: Tokenizer) -> GPT:
    return gpt(letters.size)


@pytest.fixture
def stream(letters: Tokenizer, tmp_path: Path) -> Stream:
    return Stream.build(tmp_path / "s", [Piece(TEXT * 3), Piece(TEXT), Piece(TEXT[:9])], letters)


def task_of(letters: Tokenizer, stream: Stream, **how: Any) -> Language:
    return Language(letters, stream, {"valid": stream}, **({"window": 16, "tokens": 48, "seed": 0} | how))


def one_pass(model: Autoregressive, ids: list[int]) -> list[float]:
    """Log-probability of each token but the first."""
    with torch.inference_mode():
        hidden, _ = model(None, None, torch.tensor([ids[:-1]]))
        logprobs = model.head.logits(hidden)[0].log_softmax(-1)
    return [float(line[token]) for line, token in zip(logprobs, ids[1:], strict=True)]


# ---- the task


def test_it_is_a_task(letters: Tokenizer, stream: Stream) -> None:
    task: Task = task_of(letters, stream)
    assert task.epoch(0) == 0
    assert task.fingerprint != task_of(letters, stream, window=8).fingerprint
    assert task.fingerprint != task_of(letters, stream, apart=True).fingerprint
    assert task.fingerprint == task_of(letters, stream, seed=1, tokens=64).fingerprint


@pytest.mark.parametrize("apart", [False, True])
def test_the_loss_is_the_sum_over_rows_and_tokens(letters: Tokenizer, stream: Stream, model: GPT, apart: bool) -> None:
    task = task_of(letters, stream, apart=apart)
    batches = (task.batch("train", step) for step in range(99))
    batch = next(batch for batch in batches if (batch.text[:, 1:-1] == EOS).any())
    loss = task.loss(model, batch, None)
    assert loss.count == batch.tokens == 48
    alone = [-sum(one_pass(model, row)) for row in batch.text.tolist()]
    if apart:
        assert loss.total.item() != pytest.approx(sum(alone), rel=1e-4)
        alone = [-sum(one_pass(model, part)) for row in batch.text.tolist() for part in parts(row)]
    assert loss.total.item() == pytest.approx(sum(alone), rel=1e-4)


def parts(row: list[int]) -> list[list[int]]:
    """A window's documents: each ends with the mark that is the beginning of the next."""
    ends = [i for i, token in enumerate(row[:-1]) if token == EOS]
    return [
        row[first : last + 1] for first, last in zip([0, *ends], [*ends, len(row) - 1], strict=True) if first < last
    ]


def test_an_evaluation_predicts_all_but_the_first_in_any_batches(
    letters: Tokenizer, stream: Stream, model: GPT
) -> None:
    found = task_of(letters, stream).evaluate(model, "valid")
    assert found == pytest.approx(measure(model, letters, stream, window=16, tokens=1), rel=1e-6)
    tokens = stream.read(np.array([0]), len(stream))[0].tolist()
    alone = [x for first in range(0, len(tokens) - 1, 16) for x in one_pass(model, tokens[first : first + 17])]
    assert len(alone) == len(stream) - 1
    assert found["loss"] == pytest.approx(-sum(alone) / len(alone), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits"] == pytest.approx(found["loss"] / math.log(2))
    assert f"{len(stream) - 1} tokens, all windows of 16 that do not overlap" in found["bits"].definition  # type: ignore[attr-defined]


def test_bits_per_character_are_for_characters(spelt: Tokenizer, tmp_path: Path) -> None:
    stream = Stream.build(tmp_path / "t", [Piece(TEXT)], spelt)
    assert set(measure(gpt(spelt.size), spelt, stream, window=16)) == {"loss", "perplexity"}


def test_splits_that_cannot_be_asked_for(letters: Tokenizer, stream: Stream, model: GPT) -> None:
    task = task_of(letters, stream)
    assert task.evaluate(model, "test") == {}
    with pytest.raises(ValueError, match="only training draws batches by step; 'valid' is read in order"):
        task.batch("valid", 0)
    with pytest.raises(DataError, match="the held-out text has 1 tokens, and nothing to predict; give more"):
        measure(model, letters, stream.split(1 - 1 / len(stream))[0], window=16)


# ---- going on with a text

PROMPTS = ["the cat", "the dog", "on", "", "sat on the mat and the", "the cat"]


@pytest.mark.parametrize("name", HOWS)
def test_no_answer_depends_on_its_neighbours(letters: Tokenizer, model: GPT, name: str) -> None:
    how = DecodeConfig(**({"longest": 12} | HOWS[name]))
    together = generate(model, letters, PROMPTS, how)
    assert [answer.source for answer in together] == PROMPTS
    assert together[0].texts == together[-1].texts
    for prompt, answer in zip(PROMPTS, together, strict=True):
        (alone,) = generate(model, letters, [prompt], how, tokens=1)
        assert alone.texts == answer.texts
        assert [h.logprob for h in alone.hypotheses] == pytest.approx([h.logprob for h in answer.hypotheses], rel=1e-4)
        for text, hypothesis in zip(answer.texts, answer.hypotheses, strict=True):
            start = letters.encode(prompt) or [EOS]
            said = [*hypothesis.tokens, *([EOS] if hypothesis.finished else [])]
            assert letters.decode(hypothesis.tokens) == text
            assert sum(one_pass(model, [*start, *said])[len(start) - 1 :]) == pytest.approx(
                hypothesis.logprob, rel=1e-4
            )


def test_it_stops_at_the_end_mark_the_limit_or_the_end_of_the_context(letters: Tokenizer, model: GPT) -> None:
    def written(prompt: str, **how: Any) -> tuple[int, bool]:
        ((answer,),) = [a.hypotheses for a in generate(model, letters, [prompt], DecodeConfig(beam=1, **how))]
        return len(answer.tokens), answer.finished

    ids = letters.encode("the cat")
    with torch.no_grad():  # after this the end mark is never likely
        model.words.weight[EOS] = 0
        hidden, _ = model(None, None, torch.tensor([ids]))
    assert written("the cat", longest=5, shortest=5) == (5, False)
    assert written("the cat", longest=99, shortest=99) == (24 - 7 + 1, False)
    assert written("x" * 24, longest=99, shortest=99) == (1, False)
    with torch.no_grad():  # and after this it is the likeliest
        model.words.weight[EOS] = 9 * hidden[0, -1]
    assert written("the cat", longest=5) == (0, True)


def test_tokens_before_every_prompt_are_read_and_not_written(letters: Tokenizer, model: GPT) -> None:
    how = DecodeConfig(beam=1, longest=6)
    marked = generate(model, letters, ["", "on"], how, before=[EOS])
    assert marked[0].texts == generate(model, letters, [""], how)[0].texts
    assert marked[1].hypotheses != generate(model, letters, ["on"], how)[0].hypotheses
    (start,) = score(model, letters, ["on" + marked[1].texts[0]], before=[EOS])
    assert sum(start[2:8]) == pytest.approx(marked[1].hypotheses[0].logprob, rel=1e-4)


def test_prompt_and_continuation_are_one_text(spelt: Tokenizer) -> None:
    """A word goes on, or brings the space before it."""
    model = gpt(spelt.size)
    for answer in generate(model, spelt, ["the c", "the cat", "déj"], DecodeConfig(sample=True, longest=9)):
        said = [*spelt.encode(answer.source), *answer.hypotheses[0].tokens]
        assert answer.source + answer.texts[0] == spelt.decode(said)


def test_progress_is_told(letters: Tokenizer, model: GPT) -> None:
    told: list[tuple[int, int]] = []
    generate(model, letters, PROMPTS, DecodeConfig(longest=2), progress=lambda *done: told.append(done))
    assert told[-1] == (6, 6)


class Recites(Autoregressive):
    """Says a text whatever it hears; only the length of what it has read counts."""

    def __init__(self, ids: list[int], vocab: int) -> None:
        super().__init__()
        self.ids, self.vocab = [*ids, EOS], vocab
        self.read = 0
        self.words = torch.nn.Embedding(vocab, 1)

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        return State()

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.read = state.length + 1
        logits = torch.zeros(len(tokens), self.vocab)
        logits[:, self.ids[state.length]] = 99.0
        return logits, State(length=state.length + 1)


@pytest.mark.parametrize("name", ["greedy", "sample", "blocked"])
def test_what_is_streamed_is_what_is_generated(spelt: Tokenizer, name: str) -> None:
    model, how = gpt(spelt.size), DecodeConfig(**({"longest": 15} | HOWS[name]))
    for prompt in ("", "the cat", "東"):
        pieces = list(streamed(model, spelt, prompt, how))
        assert "".join(pieces) == generate(model, spelt, [prompt], how)[0].texts[0]
    assert len(pieces) > 1


def test_no_piece_ends_inside_a_character(spelt: Tokenizer) -> None:
    ids = spelt.encode(TEXT)
    assert len(ids) > len(TEXT) / 2
    assert sum("\ufffd" in spelt.decode([i]) for i in ids) > 5, "some tokens are parts of characters"
    pieces = list(streamed(Recites(ids, spelt.size), spelt, "", DecodeConfig(beam=1, longest=200)))
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(pieces) > 20
    (cut,) = streamed(Recites(spelt.encode("😀"), spelt.size), spelt, "", DecodeConfig(beam=1, longest=2))
    assert cut == "\ufffd", "what was cut off by the limit is shown at last"


def test_whoever_stops_listening_stops_the_search(spelt: Tokenizer) -> None:
    before, model = active_count(), Recites(spelt.encode(TEXT), spelt.size)
    text = streamed(model, spelt, "", DecodeConfig(beam=1, longest=200))
    assert len(list(islice(text, 3))) == 3
    text.close()  # type: ignore[attr-defined]
    assert active_count() == before


def test_what_goes_wrong_while_it_writes_is_raised(spelt: Tokenizer) -> None:
    model = Recites([5, 6], spelt.size)
    with pytest.raises(IndexError):
        list(streamed(model, spelt, "", DecodeConfig(beam=1, longest=200, shortest=9)))


def test_questions_that_cannot_be_asked(letters: Tokenizer, model: GPT) -> None:
    greedy = DecodeConfig(beam=1)
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: generate(model, letters, ["a", "x" * 25], greedy), DataError,
         "prompt 2 has 25 tokens, but this model reads at most 24; write a shorter one"),
        (lambda: list(streamed(model, letters, "x" * 25, greedy)), DataError,
         "the prompt has 25 tokens, but this model reads at most 24; write a shorter one"),
        (lambda: list(streamed(model, letters, "x", DecodeConfig(beam=4))), ConfigError,
         "decode.beam = 4: a beam knows its words only at the end; write beam = 1 or sample"),
        (lambda: list(streamed(model, letters, "x", DecodeConfig(sample=True, nbest=2))), ConfigError,
         "decode.nbest = 2: one text can be shown while it is written; write nbest = 1"),
        (lambda: generate(model, letters, ["a"], DecodeConfig(coverage=0.2)), ConfigError,
         "decode.coverage = 0.2: there is no source that could be covered; write 0"),
        (lambda: continuations(model, letters, "the cat", [" sat", ""]), DataError,
         "the choice '' adds nothing to the context; write what may follow it"),
        (lambda: continuations(model, letters, "x" * 24, [" s"]), DataError,
         "text 1 has 25 tokens, but this model reads at most 24; score a shorter one"),
        (lambda: few_shot([], "1 + 1", "{question} ="), ConfigError,
         r"the template '{question} =' wants {question}, then {answer}; write for example 'Q: {question} A: {answer}'"),
    ]  # fmt: skip
    for ask, error, sentence in cases:
        with pytest.raises(error, match=sentence.replace("+", r"\+")):
            ask()


# ---- how likely a text is


def test_likelihoods_add_up_to_that_of_the_whole_in_one_pass(letters: Tokenizer, model: GPT) -> None:
    context, choices = "the cat", [" sat", " on the mat", "!", "s"]
    whole = score(model, letters, [context + choice for choice in choices], before=[EOS])
    (alone,) = score(model, letters, [context], before=[EOS])
    found = continuations(model, letters, context, choices, before=[EOS])
    for choice, logprobs, one in zip(choices, whole, found, strict=True):
        ids = letters.encode(context + choice)
        assert logprobs == pytest.approx(one_pass(model, [EOS, *ids]), rel=1e-4)
        assert one.logprob == pytest.approx(sum(logprobs) - sum(alone), rel=1e-4)
        assert (one.text, one.tokens) == (choice, len(choice))
        assert one.score == pytest.approx(one.logprob / len(choice))
    plain = continuations(model, letters, context, choices, before=[EOS], normalise=False)
    assert [one.score for one in plain] == [one.logprob for one in found]


def test_a_choice_may_begin_inside_a_word_or_after_nothing(spelt: Tokenizer) -> None:
    model = gpt(spelt.size)
    (inside,) = continuations(model, spelt, "the ca", ["t sat"], before=[EOS])
    whole, context = spelt.encode("the cat sat"), spelt.encode("the ca")
    shared = next(i for i, (a, b) in enumerate(zip(whole, [*context, UNK], strict=False)) if a != b)
    assert inside.tokens == len(whole) - shared
    assert inside.logprob == pytest.approx(sum(one_pass(model, [EOS, *whole])[shared:]), rel=1e-4)
    (first,) = continuations(model, spelt, "", ["the cat"])
    assert first.logprob == pytest.approx(sum(score(model, spelt, ["the cat"])[0]), rel=1e-4)


def test_demonstrations_stand_before_the_question() -> None:
    shown = [("2 + 2", "4"), ("{answer}", "{question}")]
    assert few_shot(shown, "1 + 1") == "2 + 2 4\n{answer} {question}\n1 + 1"
    assert few_shot(shown[:1], "1 + 1", "Q: {question}\nA: {answer}.") == "Q: 2 + 2\nA: 4.\nQ: 1 + 1\nA:"
    assert few_shot([], "1 + 1") == "1 + 1"


# ---- special texts


def test_demonstrations_teach_a_model_that_has_learnt_to_be_taught(tmp_path: Path) -> None:
    """The mappings that it is asked about were never shown in training, and no weight changes."""
    words = Tokenizer.train([maps.WORDS], kind="word", size=200)
    stream = Stream.build(tmp_path / "s", map(Piece, maps.maps("train", 4000)), words)
    task = Language(words, stream, {}, window=32, tokens=32 * 32, seed=0, apart=True)
    model = gpt(words.size, context=32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), fused=True)
    for step in range(250):
        loss = task.loss(model, task.batch("train", step), None)
        torch.autograd.backward(loss.total / loss.count)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = by_shots(model.eval(), words, count=400)
    assert list(found) == list(range(9))
    assert found[0] < 20
    assert found[8] > 80
    assert all(found[shots + 2] > found[shots] for shots in range(7))
    assert "400 questions after 4 demonstrations; 55.0 is the most that what was shown can give" in found[4].definition
    assert min(by_shots(model, words, count=200, among="shown").values()) > 70


def test_a_run_that_learnt_from_demonstrations_is_measured_by_their_number(tmp_path: Path) -> None:
    values = merge(read_toml(find_recipe("maps")), {"data": {"count": 50}, "train": {"steps": 1, "device": "cpu"}})
    tiny.train(tmp_path / "run", merge(values, {"model": {"dim": 8, "layers": 1}}))
    told = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert [name for name in told if name.startswith("shots")] == [f"shots {shots}" for shots in range(9)]
    assert "after 3 demonstrations" in told["shots 3"]["definition"]
    assert {"loss", "perplexity"} < set(told)


@pytest.mark.parametrize(("kind", "size"), [("word", 100), ("bpe", 300), ("char", 30)])
def test_what_a_frame_costs_is_the_cost_of_all_its_words(kind: Any, size: int, tmp_path: Path) -> None:
    words = Tokenizer.train([music.WORDS], kind=kind, size=size)
    model, texts = gpt(words.size), ["60 64 . 60 . .", ". 21 99 ."]
    held = Stream.build(tmp_path / "s", map(Piece, texts), words)
    line = one_pass(model, [*words.encode(texts[0]), EOS, *words.encode(texts[1]), EOS])
    found = measure(model, words, held, window=24, stop=music.STOP)
    if len(line) <= 24:
        assert found["frame_loss"] == pytest.approx(-sum(line) / 5, rel=1e-4)
    assert found["frame_loss"] == pytest.approx(found["loss"] * len(line) / 5, rel=1e-6)
    told = f"to a frame, of which there are 5 in {len(line)} tokens, all windows of 24 that do not overlap: notes"
    assert told in found["frame_loss"].definition  # type: ignore[attr-defined]
    assert "frame_loss" not in measure(model, words, held, window=24)


@pytest.mark.data("poly_music")
def test_a_run_on_music_is_measured_by_the_frame(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    file = [str(data_dir("poly_music") / "JSB_Chorales.mat")]
    values = merge(read_toml(find_recipe("chorales")), {"data": dict.fromkeys(("train", "valid", "test"), file)})
    train = {"steps": 1, "device": "cpu", "metric": "frame_loss"}
    tiny.train(tmp_path / "run", merge(values, {"model": {"dim": 8, "heads": 1, "layers": 1}, "train": train}))
    told = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert told["frame_loss"]["value"] == pytest.approx(told["loss"]["value"] * 23168 / 4725, rel=1e-6)
    assert "4725" in told["frame_loss"]["definition"]


# ---- a model that came without a vocabulary


@pytest.mark.parametrize("marks", [{}, {"eos_token_id": 2}])
@pytest.mark.parametrize(
    ("text", "strange"), [("hello", "hello"), ("1 999", "999"), ("01 1", "01"), ("0 <none>", "<none>")]
)
def test_what_is_no_number_of_a_token_is_refused(
    marks: dict[str, Any], text: str, strange: str, tmp_path: Path
) -> None:
    numbers(12, marks).save(tmp_path / "tokenizer.json")
    tokenizer, how = Tokenizer.load(tmp_path / "tokenizer.json"), DecodeConfig(beam=1, longest=3)
    model = gpt(tokenizer.size)
    asked: list[Callable[[str], Any]] = [
        lambda text: generate(model, tokenizer, [text], how),
        lambda text: list(streamed(model, tokenizer, text, how)),
        lambda text: score(model, tokenizer, [text]),
        lambda text: continuations(model, tokenizer, "1 ", [text]),
    ]
    for ask in asked:
        assert ask("0 1 11")
        with pytest.raises(DataError, match=f"'{strange}' is no token of this model.* numbers from 0 to 11 are wanted"):
            ask(text)


def test_a_vocabulary_that_has_numbers_among_words_takes_words() -> None:
    tokenizer = Tokenizer.train(["0 1 2 3 4 5"], kind="word", size=20)
    assert generate(gpt(tokenizer.size), tokenizer, ["hello 4"], DecodeConfig(beam=1, longest=3))
