"""Exact match and F1 of answers to questions, as SQuAD 2.0 defines them (Rajpurkar et al. 2016, 2018).

Capitals, punctuation, articles and white space do not count. An answer is compared with each reference, and the best
comparison counts. A question without references has no answer, and "" is right. The script of 1.1 differs in one thing:
it gives F1 = 0 where nothing is left of answer and reference ("The").
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from regard.metrics import Measure

Score: TypeAlias = Callable[[str, Sequence[str]], float]  # of an answer, among its references

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
HOW = "after lower-casing, without punctuation and articles, best of the references; SQuAD 2.0"


def plain(text: str) -> str:
    """What counts of an answer."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(answer: str, references: Sequence[str]) -> float:
    """1 where the answer is one of the references, else 0."""
    return float(plain(answer) in _wanted(references))


def overlap(answer: str, references: Sequence[str]) -> float:
    """F1 of the words that an answer shares with a reference, in the best case."""
    return max(_f1(plain(answer).split(), reference.split()) for reference in _wanted(references))


def squad(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Measure]:
    """Of all questions, in %; where some have an answer and some none, of the two kinds as well."""
    groups = {"": [*range(len(references))]}
    held = [any(map(plain, some)) for some in references]
    if len(set(held)) == 2:
        groups["_with"] = [i for i in groups[""] if held[i]]
        groups["_without"] = [i for i in groups[""] if not held[i]]
    names = {"": "questions", "_with": "questions that have an answer", "_without": "questions that have none"}
    measures: dict[str, Measure] = {}
    for group, rows in groups.items():
        of = f"{len(rows)} {names[group]}"
        hits = _percent(exact, answers, references, rows)
        measures[f"exact{group}"] = Measure(hits, f"answers equal to a reference {HOW}, in % of {of}")
        words = _percent(overlap, answers, references, rows)
        measures[f"f1{group}"] = Measure(words, f"F1 of shared words {HOW}, mean in % over {of}")
    return measures


def best_threshold(
    doubts: Sequence[float], answers: Sequence[str], references: Sequence[Sequence[str]], score: Score
) -> tuple[float, float]:
    """The threshold τ that scores best when a question is left unanswered where its doubt exceeds τ; the score, in %.

    `answers` are the best that could be given; a doubt is how much better no answer seemed.
    """
    given = np.array([score(*pair) for pair in zip(answers, references, strict=True)])
    silent = np.array([score("", some) for some in references])
    order = np.argsort(doubts, kind="stable")
    values = np.array(doubts, dtype=float)[order]
    totals = silent.sum() + np.cumsum((given - silent)[order])
    last = np.append(values[1:] != values[:-1], True)  # equal doubts are answered together
    at, reached = values[last], totals[last]
    if silent.sum() > reached.max():
        return float(values[0] - 1), float(100 * silent.mean())
    best = int(reached.argmax())
    return float(at[best]), float(100 * reached[best] / len(given))


def _wanted(references: Sequence[str]) -> list[str]:
    return [text for text in map(plain, references) if text] or [""]


def _f1(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    shared = (Counter(answer) & Counter(reference)).total()
    return 2 * shared / (len(answer) + len(reference))


def _percent(score: Score, answers: Sequence[str], references: Sequence[Sequence[str]], rows: list[int]) -> float:
    return 100 * sum(score(answers[i], references[i]) for i in rows) / len(rows)
