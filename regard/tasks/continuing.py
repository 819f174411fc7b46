"""What a model that has learnt running text can be asked.

To go on with a text (`generate`, `streamed`), to say how likely a text is (`score`), to choose among continuations by
their likelihood (`continuations`), and so to do what demonstrations in the prompt show (`few_shot`), with no weight
changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from regard.core.autoregressive import Autoregressive
from regard.core.state import State
from regard.data.batch import pad
from regard.data.maps import KEYS, Among, Split, best_accuracy, questions
from regard.data.tokenizer import Tokenizer
from regard.decode import Hypothesis, Step
from regard.decode.record import Record
from regard.errors import ConfigError, DataError
from regard.metrics import Measure
from regard.tasks.rewrite import Answer, Progress, by_length, spelt
from regard.tasks.searching import room, search

# ---- going on with a text


@torch.inference_mode()
def generate(
    model: Autoregressive,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    how: Any,
    *,
    before: Sequence[int] = (),
    tokens: int = 4096,
    progress: Progress | None = None,
    record: Record | None = None,
) -> list[Answer]:
    """What follows each prompt, without the prompt, in the order in which they came. `how` is a DecodeConfig.

    `before` stands before every prompt: the end mark, where a prompt begins a document. Prompts of equal length share a
    batch; then each is read in one step, and no answer depends on its neighbours.
    """
    coded = [begun(model, tokenizer, before, ids) for ids in spelt(tokenizer, prompts)]
    for number, ids in enumerate(coded, 1):
        _check(model, ids, f"prompt {number}", "write a shorter one")
    found: dict[int, list[Hypothesis]] = {}
    width = how.nbest if how.sample else max(how.beam, how.nbest)
    for length in sorted({len(ids) for ids in coded}):
        same = {i: length for i, ids in enumerate(coded) if len(ids) == length}
        for rows in by_length(same, tokens // width):
            some = _search(model, tokenizer, [coded[i] for i in rows], how, record=record)
            found.update(zip(rows, some, strict=True))
            if progress is not None:
                progress(len(found), len(prompts))
    return [
        Answer(prompt, tuple(_added(tokenizer, coded[i], h.tokens) for h in found[i]), tuple(found[i]))
        for i, prompt in enumerate(prompts)
    ]


def streamed(
    model: Autoregressive, tokenizer: Tokenizer, prompt: str, how: Any, *, before: Sequence[int] = ()
) -> Iterator[str]:
    """The text that `generate` would give, piece by piece while it is written; no piece ends inside a character."""
    if not how.sample and (how.beam > 1 or how.nbest > 1):
        mend = "write beam = 1 or sample = true (on a command line --beam 1 or --sample)"
        raise ConfigError(f"decode.beam = {how.beam}: a beam knows its words only at the end; {mend}")
    if how.nbest > 1:
        raise ConfigError(f"decode.nbest = {how.nbest}: one text can be shown while it is written; write nbest = 1")
    (read,) = spelt(tokenizer, [prompt])
    ids = begun(model, tokenizer, before, read)
    _check(model, ids, "the prompt", "write a shorter one")
    settled, fresh = ids, []
    for token in _one_by_one(model, tokenizer, ids, how):
        fresh.append(token)
        text = _added(tokenizer, settled, fresh)
        if text and not text.endswith("\ufffd"):  # else bytes of a character are still to come
            yield text
            settled, fresh = fresh, []
    if rest := _added(tokenizer, settled, fresh):
        yield rest


def _one_by_one(model: Autoregressive, tokenizer: Tokenizer, ids: list[int], how: Any) -> Iterator[int]:
    """Tokens as the search chooses them: it works in a thread of its own, and is heard whenever it steps."""
    heard: SimpleQueue[int | Hypothesis | BaseException] = SimpleQueue()
    left = False

    def step(tokens: Tensor, state: State) -> tuple[Tensor, State]:
        if left:
            raise GeneratorExit("nobody listens")
        if state.length:
            heard.put(int(tokens[0, -1]))
        return model.step(tokens, state)

    def work() -> None:
        try:
            ((best,),) = _search(model, tokenizer, [ids], how, step)
            heard.put(best)
        except BaseException as error:  # it is raised again where it can be seen
            heard.put(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        said = 0
        while isinstance(token := heard.get(), int):
            yield token
            said += 1
        if isinstance(token, BaseException):
            raise token
        yield from token.tokens[said:]  # the last was chosen, and nothing had to be read after it
    finally:
        left = True
        thread.join()


def _search(
    model: Autoregressive,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    how: Any,
    step: Step | None = None,
    record: Record | None = None,
) -> list[list[Hypothesis]]:
    """Continuations of prompts of one length."""
    if how.coverage:
        raise ConfigError(f"decode.coverage = {how.coverage}: there is no source that could be covered; write 0")
    rows, length = len(prompts), len(prompts[0])
    most = room(how, length)
    return search(
        step or model.step, lambda: model.start(rows=rows),
        torch.tensor(prompts, device=next(model.parameters()).device), how,
        eos=tokenizer.marks.end, specials=tokenizer.marks.unsayable, texts=prompts, record=record,
        limit=most if model.longest is None else min(most, model.longest - length + 1),
        quick=None if step or model.writer is None else partial(model.writer, None, None),
    )  # fmt: skip


def begun(model: Autoregressive, tokenizer: Tokenizer, before: Sequence[int], ids: list[int]) -> list[int]:
    """Something has to be read before anything can be written: the end mark, after which a document begins."""
    start = [*before, *ids] or [tokenizer.marks.end]
    if start[0] >= model.words.num_embeddings:
        raise DataError("nothing is there to go on with, and this model has no mark that begins a text; write a word")
    return start


def _check(model: Autoregressive, ids: Sequence[int], what: str, instead: str) -> None:
    if model.longest is not None and len(ids) > model.longest:
        raise DataError(f"{what} has {len(ids)} tokens, but this model reads at most {model.longest}; {instead}")


def _added(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """What tokens add to the text before them: read together, the two are one text."""
    return tokenizer.decode([*before, *tokens])[len(tokenizer.decode(before)) :]


# ---- how likely a text is


@torch.inference_mode()
def score(
    model: Autoregressive,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    before: Sequence[int] = (),
    tokens: int = 4096,
) -> list[list[float]]:
    """Log-probability of each token of each text, given those before it and `before` all: the end mark, if nothing."""
    start = begun(model, tokenizer, before, [])
    coded = [[*start, *ids] for ids in spelt(tokenizer, texts)]
    return _score(model, coded, [len(start)] * len(coded), tokenizer.marks.pad, tokens)


def _score(
    model: Autoregressive, coded: Sequence[list[int]], given: Sequence[int], pad_with: int, tokens: int = 4096
) -> list[list[float]]:
    """Log-probability of each token of each row but those that are given, of which there is one at least."""
    for number, ids in enumerate(coded, 1):
        _check(model, ids[:-1], f"text {number}", "score a shorter one")
    device = next(model.parameters()).device
    found: dict[int, list[float]] = {}
    for rows in by_length({i: len(ids) for i, ids in enumerate(coded)}, tokens):
        text, _ = pad([coded[i] for i in rows], pad_with)  # what follows a token does not change it
        text = text.to(device)
        hidden, _ = model(None, None, text[:, :-1])
        for i, line in zip(rows, model.head.logprobs(hidden, text[:, 1:]).tolist(), strict=True):
            found[i] = line[given[i] - 1 : len(coded[i]) - 1]
    return [found[i] for i in range(len(coded))]


@dataclass(frozen=True)
class Choice:
    """A continuation, and how likely it is."""

    text: str
    logprob: float  # of all its tokens
    tokens: int
    score: float  # what the choices are ranked by


@torch.inference_mode()
def continuations(
    model: Autoregressive,
    tokenizer: Tokenizer,
    context: str,
    choices: Sequence[str],
    *,
    normalise: bool = True,
    before: Sequence[int] = (),
) -> list[Choice]:
    """How likely each choice is to follow the context, in the order given; the best has the highest score.

    The score is the log-likelihood of a token on average, as in GPT-3's evaluation (Brown et al. 2020, section 2.4), so
    that long choices are not at a disadvantage; without `normalise` it is that of the whole choice.
    """
    (read,) = spelt(tokenizer, [context])
    start = begun(model, tokenizer, before, read)
    ahead = before if context else start
    whole = [[*ahead, *ids] for ids in spelt(tokenizer, [context + choice for choice in choices])]
    given = [_shared(start, ids) for ids in whole]
    for choice, ids, shared in zip(choices, whole, given, strict=True):
        if shared == len(ids):
            raise DataError(f"the choice {choice!r} adds nothing to the context; write what may follow it")
    logprobs = _score(model, whole, given, tokenizer.marks.pad)
    return [
        Choice(choice, sum(line), len(line), sum(line) / (len(line) if normalise else 1))
        for choice, line in zip(choices, logprobs, strict=True)
    ]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike; a word that begins in the context may go on in the choice."""
    same = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return max(1, next(same, min(len(one), len(other))))


def few_shot(demonstrations: Sequence[tuple[str, str]], question: str, template: str = "{question} {answer}") -> str:
    """Demonstrations with their answers, one a line, then the question, up to where its answer is wanted."""
    asked, mark, _ = template.partition("{answer}")
    if not mark or "{question}" not in asked:
        wanted = "wants {question}, then {answer}; write for example 'Q: {question} A: {answer}'"
        raise ConfigError(f"the template {template!r} {wanted}")
    shown = [_filled(template, *pair) for pair in demonstrations]
    return "\n".join([*shown, _filled(asked, question, "").rstrip(" ")])  # a word brings its own space


def _filled(template: str, question: str, answer: str) -> str:
    """Braces in the texts mean nothing."""
    asked, _, after = template.partition("{answer}")
    return asked.replace("{question}", question) + answer + after


# ---- what is measured of special texts


@torch.inference_mode()
def by_shots(
    model: Autoregressive,
    tokenizer: Tokenizer,
    *,
    count: int = 1000,
    split: Split = "test",
    among: Among = "all",
) -> dict[int, Measure]:
    """Of a model that has learnt data.maps: how many questions it answers after so many demonstrations, in %."""
    found = {}
    for shots in range(0 if among == "all" else 1, len(KEYS) + 1):
        hits = _hits(model, tokenizer, list(questions(split, count, shots=shots, among=among)))
        most = f"{best_accuracy(shots, among):.1f} is the most that what was shown can give on average"
        definition = f"likeliest value right, in % of {count} questions after {shots} demonstrations; {most}"
        found[shots] = Measure(100 * hits / count, definition)
    return found


def _hits(model: Autoregressive, tokenizer: Tokenizer, asked: Sequence[tuple[str, str]]) -> int:
    """How often the likeliest token after the question is the answer; all questions have one length."""
    whole = tokenizer.encode_many([f"{question} {answer}" for question, answer in asked])
    text = torch.tensor([[tokenizer.marks.end, *ids] for ids in whole], device=next(model.parameters()).device)
    logits, _ = model.step(text[:, :-1], model.start(rows=len(text)))
    return int((logits.argmax(-1) == text[:, -1]).sum())
