"""Questions with passages and answers, as SQuAD's JSON has them (1.1 and 2.0); plain, .xz or .gz.

    {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": [{"text": …,
    "answer_start": …}], "is_impossible": …}]}]}]}

A question that is_impossible, or has no answers, has none in its passage. An answer that does not stand where its
answer_start says is looked for in the rest of the passage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.text import Bad, BadLines, OnBad, reading, shortened
from regard.errors import DataError

ABSENT = "with an answer that is not in the passage"
BLANK = "with nothing asked or nothing to read"
NO_ANSWER = "without an answer"
SHAPE = "without id, question, answers or answer_start"


class Answer(NamedTuple):
    """Letters of a passage: passage[start : start + len(text)] is the text."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """What is asked of a passage; where there are no answers, the passage holds none."""

    id: str
    text: str
    passage: str
    answers: tuple[Answer, ...]


def read_questions(
    files: Sequence[Path], *, impossible: bool = False, bad: BadLines, on_bad: OnBad = "skip"
) -> Iterator[Question]:
    """Every good question of every file, those of a passage one behind the other; the bad ones go to `bad`.

    Without `impossible`, a question must have an answer.
    """
    bad.file, bad.unit, bad.one = " + ".join(path.name for path in files), "questions", "question"
    for path in files:
        for passage, asked in _asked(path):
            bad.read += 1
            try:
                yield _question(passage, asked, impossible)
            except Bad as error:
                bad.add(error.kind, bad.read, error.what, on_bad=on_bad)
    if len(bad) == bad.read:
        raise DataError(f"{bad.file}: no question is left ({bad}); give other data")


def _asked(path: Path) -> Iterator[tuple[str, Any]]:
    """Each passage with what is asked of it."""
    try:
        with reading(path) as file:
            articles = json.load(file)["data"]
        paragraphs = [(str(part["context"]), part["qas"]) for article in articles for part in article["paragraphs"]]
        found = [(passage, asked) for passage, questions in paragraphs for asked in questions]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); name a file in SQuAD's format") from None
    except (TypeError, KeyError, AttributeError):
        wanted = '{"data": [{"paragraphs": [{"context": "…", "qas": […]}]}]}'
        raise DataError(f"{path}: JSON, but not SQuAD's; write {wanted}") from None
    if not found:
        raise DataError(f"{path}: asks nothing; name a file with questions")
    return iter(found)


def _question(passage: str, asked: Any, impossible: bool) -> Question:
    try:
        name, text = str(asked["id"]), str(asked["question"])
        none = bool(asked.get("is_impossible", False))
        given = [] if none else [Answer(str(one["text"]), int(one["answer_start"])) for one in asked["answers"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Bad(
            SHAPE,
            f"id, question, answers or answer_start is missing: {shortened(json.dumps(asked))}",
        ) from None
    if not text.strip() or not passage.strip():
        raise Bad(BLANK, f"id {name} has an empty {'passage' if text.strip() else 'question'}")
    if not given and not impossible:
        raise Bad(NO_ANSWER, f"id {name} has no answer (task.impossible = true allows that)")
    return Question(name, text, passage, tuple(_placed(name, passage, answer) for answer in given))


def _placed(name: str, passage: str, answer: Answer) -> Answer:
    """The answer where it stands: where it is said to, else the nearest place that has the same letters."""
    text, start = answer
    if not text.strip():
        raise Bad(NO_ANSWER, f"id {name} has an empty answer; leave it out, with is_impossible = true")
    if start >= 0 and passage.startswith(text, start):
        return answer
    places = [match.start() for match in re.finditer(f"(?={re.escape(text)})", passage)]
    if not places:
        raise Bad(ABSENT, f"id {name} has the answer {shortened(text)}, which is not in its passage")
    return Answer(text, min(places, key=lambda place: abs(place - start)))
