"""How often attention looks where the meaning is: alignment error rate.

Attention is over tokens, a gold alignment over letters. They meet in groups: the tokens that say one part of the
meaning ("tw", "ent", "y") are one, and so are the parts that one token says ("hundertein").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from regard.errors import ConfigError, DataError
from regard.metrics import Measure

Span: TypeAlias = tuple[int, int]  # letters of a text: from the first to before the second
Gold: TypeAlias = tuple[Span, Span, bool]  # letters of the source, letters of the target, and whether it is sure
Pairs: TypeAlias = set[tuple[int, int]]  # (source, target)


class Links(NamedTuple):
    """Of one sentence. What is sure is possible, too."""

    predicted: Pairs
    sure: Pairs
    possible: Pairs


def alignment_error_rate(
    predicted: Sequence[Collection[tuple[int, int]]],
    sure: Sequence[Collection[tuple[int, int]]],
    possible: Sequence[Collection[tuple[int, int]]] | None = None,
) -> Measure:
    """1 - (|A∩S| + |A∩P|) / (|A| + |S|) of a corpus, with a set of pairs for each sentence; Och & Ney 2003.

    A is predicted, S sure, P possible (S included). 0 is best, 1 is worst.
    """
    possible = sure if possible is None else possible
    if not len(predicted) == len(sure) == len(possible):
        came = f"{len(predicted)} sentences predicted, {len(sure)} sure, {len(possible)} possible"
        raise ConfigError(f"{came}; give a set of pairs for each sentence in each list")
    found, wanted = 0, 0
    for given, certain, allowed in zip(map(set, predicted), map(set, sure), map(set, possible), strict=True):
        found += len(given & certain) + len(given & (allowed | certain))
        wanted += len(given) + len(certain)
    if not wanted:
        raise DataError(f"{len(sure)} sentences without a single link; give sentences of which an alignment is known")
    definition = f"1 - (|A∩S| + |A∩P|) / (|A| + |S|), Och & Ney 2003, over {len(sure)} sentences"
    return Measure(1 - found / wanted, definition)


def links(
    weights: npt.NDArray[np.floating], source: Sequence[Span], target: Sequence[Span], gold: Sequence[Gold]
) -> Links:
    """What an attention map (target × source tokens) predicts, and what it should: pairs of groups of tokens.

    `source` and `target` tell which letters each token says. A token of the target is linked with the token of the
    source that it looks at most; where the gold alignment says nothing of it, it is not asked.
    """
    if weights.shape != (len(target), len(source)):
        came = f"weights of shape {weights.shape} for {len(target)} target and {len(source)} source tokens"
        raise ConfigError(f"{came}; give a row for each of the target and a column for each of the source")
    read, written = _groups(source, [one for one, _, _ in gold]), _groups(target, [other for _, other, _ in gold])
    pairs = [
        ((read[i], written[j]), sure)
        for one, other, sure in gold
        for i in _tokens(source, one)[:1]
        for j in _tokens(target, other)[:1]
    ]
    asked = {group for (_, group), _ in pairs}
    predicted = {
        (read[int(row.argmax())], group) for row, group in zip(weights, written, strict=True) if group in asked
    }
    return Links(predicted, {pair for pair, sure in pairs if sure}, {pair for pair, _ in pairs})


def _groups(tokens: Sequence[Span], parts: Iterable[Span]) -> list[int]:
    """The group of each token, named after its first: tokens that say one part belong together."""
    groups = [*range(len(tokens))]
    for part in parts:
        met = {groups[i] for i in _tokens(tokens, part)}
        groups = [min(met) if group in met else group for group in groups]
    return groups


def _tokens(tokens: Sequence[Span], part: Span) -> list[int]:
    """Those that say some of these letters."""
    return [i for i, (start, end) in enumerate(tokens) if max(start, part[0]) < min(end, part[1])]
