"""From tokens to text while they come: no piece ends inside a character, and none goes beyond a stop."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what is shown for bytes that are no whole character


def added(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """What tokens add to the text before them: read together, the two are one text."""
    return tokenizer.decode([*before, *tokens])[len(tokenizer.decode(before)) :]


class Spelling:
    """Text as far as it is certain. Some tokens before the new ones are read with them, since spaces depend on them."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self.tokenizer, self.settled, self.fresh = tokenizer, list(before), list[int]()

    def add(self, tokens: Sequence[int]) -> str:
        self.fresh += tokens
        text = added(self.tokenizer, self.settled, self.fresh)
        if not text or text.endswith(UNFINISHED):
            return ""
        self.settled, self.fresh = self.fresh, []
        return text

    def rest(self) -> str:
        return added(self.tokenizer, self.settled, self.fresh)


class Until:
    """Passes text on until one of the stops comes; what might be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.over = stops, "", False

    def pass_on(self, text: str) -> str:
        self.held += text
        found = [place for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if found:
            self.over = True
            said, self.held = self.held[: min(found)], ""
            return said
        keep = max((_overlap(self.held, stop) for stop in self.stops), default=0)
        said, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return said

    def rest(self) -> str:
        said, self.held = self.held, ""
        return said


def _overlap(text: str, stop: str) -> int:
    """How many letters at the end of a text begin a stop."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
