"""Tokens as labels: nothing in them may steer a terminal, and each takes the room it is given."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, set_cell_size

ELLIPSIS = "…"


def readable(token: str) -> str:
    """The token with control characters made visible, and without the invisible ones that could turn text around."""
    return "".join(map(_visible, token))


def _visible(letter: str) -> str:
    kind = unicodedata.category(letter)
    if kind == "Cf":
        return ""
    if kind in ("Zl", "Zp") or kind.startswith("C"):
        return chr(0x2400 + ord(letter)) if ord(letter) < 0x20 else "�"
    return letter


def shorten(text: str, room: int) -> str:
    """The text in at most `room` cells of a terminal."""
    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + ELLIPSIS


def letters(text: str) -> list[str]:
    """The text letter by letter; what has no width of its own (an accent) stays with the letter before it."""
    found: list[str] = []
    for letter in text:
        if found and not cell_len(letter):
            found[-1] += letter
        else:
            found.append(letter)
    return found
