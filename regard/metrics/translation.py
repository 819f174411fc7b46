"""BLEU and chrF by sacrebleu, always with the signature; exact match; perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF

from regard.metrics import Measure


def bleu(answers: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False) -> Measure:
    """Of the corpus, 0 to 100."""
    metric = BLEU(tokenize=tokenize, lowercase=lowercase)
    score = metric.corpus_score(list(answers), [list(references)])
    return Measure(score.score, str(metric.get_signature()))


def chrf(answers: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Measure:
    metric = CHRF(lowercase=lowercase)
    return Measure(metric.corpus_score(list(answers), [list(references)]).score, str(metric.get_signature()))


def exact_match(answers: Sequence[str], references: Sequence[str]) -> Measure:
    hits = sum(a.strip() == r.strip() for a, r in zip(answers, references, strict=True))
    return Measure(100 * hits / len(references), f"answers equal to the reference, in % of {len(references)}")


def perplexity(nll: float, tokens: int) -> Measure:
    return Measure(math.exp(min(nll / tokens, 700)), f"exp of the mean negative log-likelihood of {tokens} tokens, teacher-forced, unsmoothed")
