"""The tokens of a vocabulary that are no text, and how they frame one.

    source      *before words… end
    target      begin *opening words… end

A vocabulary that Regard has learnt begins with <pad> <bos> <eos> <unk>. Any other keeps its own, and `marks.json`
beside it says by name which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from regard.errors import CheckpointError

SEVERAL = ("before", "opening", "between")
MOST = 16  # tokens that stand in one place


@dataclass(frozen=True)
class Marks:
    """Their numbers in one vocabulary. Two may be the same: a GPT-2 has one alone, which begins, ends and pads."""

    pad: int
    begin: int
    """Where a decoder starts: Marian's <pad>, BART's </s>; for BERT its [CLS]."""
    end: int
    """BERT's [SEP]."""
    unknown: int | None
    """Stands for what cannot be spelt; none where everything can."""
    mask: int | None = None
    """Stands for a hidden token."""
    delimiter: int | None = None
    """Stands between two texts that a GPT reads as one."""
    extract: int | None = None
    """Where a GPT is asked what it has read."""
    before: tuple[int, ...] = ()
    """Stand before every source: BART's <s>."""
    opening: tuple[int, ...] = ()
    """Stand behind `begin` in every target: BART's <s>, which its decoder is made to say first."""
    between: tuple[int, ...] = ()
    """Stand between two texts, behind the end of the first: RoBERTa's second </s>."""

    @property
    def all(self) -> frozenset[int]:
        """No text may contain them. The unknown is text."""
        single = {self.pad, self.begin, self.end, self.mask, self.delimiter, self.extract} - {None}
        return frozenset((*single, *self.before, *self.opening, *self.between))  # type: ignore[arg-type]

    @property
    def unsayable(self) -> tuple[int, ...]:
        """What no answer may contain; it may end."""
        return tuple(sorted(self.all - {self.end}))

    def source(self, words: Iterable[int]) -> list[int]:
        return [*self.before, *words, self.end]

    def target(self, words: Iterable[int]) -> list[int]:
        return [self.begin, *self.opening, *words, self.end]

    def names(self, name: Callable[[int], str | None]) -> dict[str, Any]:
        """For marks.json: what each is called."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            key: [name(i) for i in value] if isinstance(value, tuple) else name(value)
            for key, value in given.items()
            if value not in (None, ())
        }

    @classmethod
    def named(cls, names: Mapping[str, Any], number: Callable[[str], int | None], where: str) -> Marks:
        """The other way round. `where` is the file that names them."""

        def find(mark: str, name: Any) -> int:
            whole = isinstance(name, str) and not any("\ud800" <= letter <= "\udfff" for letter in name)
            found = number(name) if whole else None  # half a character is in no vocabulary
            if found is None:
                what = f"{where}: {mark} is {repr(name)[:80]}, which the vocabulary lacks"
                raise CheckpointError(f"{what}; name one of its tokens")
            return found

        known = {field.name for field in fields(cls)}
        if strange := sorted(map(str, set(names) - known)):
            raise CheckpointError(
                f"{where}: no mark is called {strange[0][:40]!r}; there are {', '.join(sorted(known))}"
            )
        for mark in ("pad", "begin", "end"):
            if mark not in names:
                raise CheckpointError(f"{where}: does not say which token is {mark!r}; name one of the vocabulary")
        found: dict[str, Any] = {"unknown": None}
        for mark, name in names.items():
            if mark in SEVERAL and not (isinstance(name, list) and len(name) <= MOST):
                wanted = f"a list of at most {MOST} tokens was wanted"
                raise CheckpointError(f"{where}: {mark} is {repr(name)[:80]}, where {wanted}")
            found[mark] = tuple(find(mark, one) for one in name) if mark in SEVERAL else find(mark, name)
        return cls(**found)
