"""BLEU and chrF by sacrebleu, always with the signature; exact match; perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu import metrics

from regard.metrics import Measure


@dataclass(frozen=True)
class BLEU:
    """What sacrebleu does to the text before it counts."""

    tokenize: str = "13a"
    lowercase: bool = False


def bleu(answers: Sequence[str], references: Sequence[str], how: BLEU = BLEU()) -> Measure:
    """Of the corpus, 0 to 100."""
    metric = metrics.BLEU(tokenize=how.tokenize, lowercase=how.lowercase, force=how.tokenize == "none")
    score = metric.corpus_score(list(answers), [list(references)])
    return Measure(score.score, str(metric.get_signature()))


def chrf(answers: Sequence[str], references: Sequence[str], how: BLEU = BLEU()) -> Measure:
    metric = metrics.CHRF(lowercase=how.lowercase)
    return Measure(metric.corpus_score(list(answers), [list(references)]).score, str(metric.get_signature()))


def exact_match(answers: Sequence[str], references: Sequence[str]) -> Measure:
    hits = sum(a.strip() == r.strip() for a, r in zip(answers, references, strict=True))
    return Measure(100 * hits / len(references), f"answers equal to the reference, in % of {len(references)}")


def perplexity(nll: float, tokens: int) -> Measure:
    value = math.exp(min(nll / tokens, 700))
    return Measure(value, f"exp of the mean negative log-likelihood of {tokens} tokens, teacher-forced, unsmoothed")
