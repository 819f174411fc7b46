"""Dialogues: each turn answers the turn before.

    Customer: My screen is blank.
    Support: Please check if your computer is plugged in.
    It may be the cable.
    Customer: It was the cable, thank you.

These are two exchanges. Who speaks is not part of the text; a line that names no speaker goes on with the turn before,
and so does a speaker who is named again. The colon after a name is followed by a space, so 3:30 is no name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from operator import itemgetter


def exchanges(dialogue: str) -> list[tuple[str, str]]:
    """Each turn with the turn that answers it."""
    turns = groupby(_lines(dialogue), key=itemgetter(0))
    return list(pairwise(" ".join(words for _, words in turn).strip() for _, turn in turns))


def _lines(dialogue: str) -> Iterator[tuple[str, str]]:
    """Speaker and words of each line."""
    speaker = ""
    for line in filter(str.strip, dialogue.split("\n")):
        name, colon, words = f"{line.strip()} ".partition(": ")
        speaker = name if colon else speaker
        yield speaker, (words if colon else name).strip()
