"""Scores are the field's own, and none travels without its definition."""

from __future__ import annotations

import math

import pytest
from sacrebleu import metrics

from regard.errors import ConfigError
from regard.metrics import Measure
from regard.metrics.translation import BLEU, bleu, chrf, exact_match, perplexity

ANSWERS = ["The cat sat on the mat .", "a dog , running in the park", "Nothing at all"]
REFERENCES = ["The cat sat on a mat .", "A dog runs in the park", "nothing at all"]


@pytest.mark.parametrize("how", [BLEU(), BLEU("none"), BLEU("char"), BLEU("intl", lowercase=True)])
def test_bleu_is_sacrebleus_with_its_signature(how: BLEU) -> None:
    theirs = metrics.BLEU(tokenize=how.tokenize, lowercase=how.lowercase, force=True)
    ours = bleu(ANSWERS, REFERENCES, how)
    assert ours == theirs.corpus_score(ANSWERS, [REFERENCES]).score
    assert ours.definition == str(theirs.get_signature())
    assert f"tok:{how.tokenize}" in ours.definition


@pytest.mark.parametrize("lowercase", [False, True])
def test_chrf_is_sacrebleus_with_its_signature(lowercase: bool) -> None:
    theirs = metrics.CHRF(lowercase=lowercase)
    ours = chrf(ANSWERS, REFERENCES, BLEU(lowercase=lowercase))
    assert ours == theirs.corpus_score(ANSWERS, [REFERENCES]).score
    assert ours.definition == str(theirs.get_signature())


def test_the_same_text_is_worth_a_hundred() -> None:
    for score in (bleu, chrf, exact_match):
        assert score(REFERENCES, REFERENCES) == pytest.approx(100)


def test_half_the_length_costs_a_factor_of_e() -> None:
    """The brevity penalty exp(1 - r/c), where every n-gram of the answer is right."""
    reference = [" ".join(map(str, range(40)))]
    answer = [" ".join(map(str, range(20)))]
    assert bleu(answer, reference) == pytest.approx(100 * math.exp(-1))


def test_exact_match_counts_whole_answers() -> None:
    found = exact_match(["a b", " c ", "D", "x"], ["a b", "c", "d", "y"])
    assert found == 50
    assert "% of 4" in found.definition
    ignoring = exact_match(["a b", " c ", "D", "x"], ["a b", "c", "d", "y"], BLEU(lowercase=True))
    assert ignoring == 75
    assert "case ignored" in ignoring.definition


def test_perplexity_of_a_fair_die() -> None:
    found = perplexity(100 * math.log(6), 100)
    assert found == pytest.approx(6)
    assert "100 tokens" in found.definition
    assert math.isfinite(perplexity(1e9, 1)), "a hopeless model has a large perplexity, not an error"


def test_a_measure_is_a_number() -> None:
    assert Measure(2.0, "half of four") + 1 == 3
    assert f"{Measure(2.0, ''):.1f}" == "2.0"


def test_a_language_whose_library_is_absent_is_named_before_anything_is_trained() -> None:
    try:
        metrics.BLEU(tokenize="ko-mecab")
    except (ImportError, RuntimeError):
        with pytest.raises(ConfigError, match=r"task.bleu = 'ko-mecab' needs a library .*sacrebleu\[ko\]"):
            BLEU("ko-mecab").counter()
    else:
        assert BLEU("ko-mecab").counter()
