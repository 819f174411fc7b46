"""BLEU and chrF by sacrebleu, always with the signature; exact match; perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu import metrics

from regard.errors import ConfigError
from regard.metrics import Measure


@dataclass(frozen=True)
class BLEU:
    """What sacrebleu does to the text before it counts."""

    tokenize: str = "13a"
    lowercase: bool = False

    def counter(self) -> metrics.BLEU:
        try:
            return metrics.BLEU(tokenize=self.tokenize, lowercase=self.lowercase, force=self.tokenize == "none")
        except (ImportError, RuntimeError):  # Japanese and Korean are split by libraries of their own
            extra = self.tokenize.partition("-")[0]
            raise ConfigError(
                f"task.bleu = {self.tokenize!r} needs a library that is not installed; "
                f"write pip install 'sacrebleu[{extra}]'"
            ) from None


def bleu(answers: Sequence[str], references: Sequence[str], how: BLEU = BLEU()) -> Measure:
    """Of the corpus, 0 to 100."""
    metric = how.counter()
    score = metric.corpus_score(list(answers), [list(references)])
    return Measure(score.score, str(metric.get_signature()))


def chrf(answers: Sequence[str], references: Sequence[str], how: BLEU = BLEU()) -> Measure:
    metric = metrics.CHRF(lowercase=how.lowercase)
    return Measure(metric.corpus_score(list(answers), [list(references)]).score, str(metric.get_signature()))


def exact_match(answers: Sequence[str], references: Sequence[str], how: BLEU = BLEU()) -> Measure:
    """Equal letter by letter but for outer white space, and for case where the text is lower-cased."""
    plain = (lambda text: text.strip().lower()) if how.lowercase else str.strip
    hits = sum(plain(a) == plain(r) for a, r in zip(answers, references, strict=True))
    case = ", case ignored" if how.lowercase else ""
    return Measure(100 * hits / len(references), f"answers equal to the reference{case}, in % of {len(references)}")


def perplexity(nll: float, tokens: int) -> Measure:
    value = math.exp(min(nll / tokens, 700))
    return Measure(value, f"exp of the mean negative log-likelihood of {tokens} tokens, teacher-forced, unsmoothed")
