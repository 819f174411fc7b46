"""Many answers at once: requests enter and leave a batch in mid-decode, and no answer depends on who else is there.

    admit ─▶ waiting ─read together─▶ a batch for each number of hypotheses ─step─▶ events
                                        ▲                                │
                                        └──────────── who goes on ◀──────┘

Lines with equally many hypotheses share a batch, because hypotheses share the memory of their sentence. There are
neither threads nor clocks in here: whoever drives an engine calls `step` again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.core.autoregressive import Autoregressive
from regard.core.state import State, join, reorder, trim
from regard.decode.filters import Filter
from regard.decode.line import Hypothesis, Line, Search, check
from regard.decode.search import Greedy, advance, go_on
from regard.errors import DataError, RegardError

APART = 4  # steps from one reading of newcomers to the next, as long as others are being answered
SPARE = 16  # tokens by which a source may be longer than twice its neighbour, and still be read together with it


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request: what is read, how its answer is searched for, and how long it may become."""

    source: Sequence[int] | None = None
    prompt: Sequence[int]
    limit: int
    eos: int
    how: Search = field(default_factory=Greedy)
    filters: tuple[Filter, ...] = ()
    prefix: Sequence[int] = ()


class Live:
    """A request that is being answered."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.begin()

    def begin(self) -> None:
        """Nothing has been said yet, or all is forgotten."""
        ask = self.ask
        self.line = Line(ask.how, eos=ask.eos, limit=ask.limit, filters=ask.filters, prefix=ask.prefix)
        self.told = 0  # tokens that an event has told

    def tell(self) -> Event | None:
        """What there is to say of the last step; a beam knows its words only at the end."""
        line, best = self.line, None
        if not line.going:
            best = line.best
            tokens = best[0].tokens[self.told :]
        elif self.ask.how.keep == 1:
            tokens = tuple(line.stories[0][self.told :])
        else:
            return None
        self.told += len(tokens)
        return Event(self, tokens, best)


@dataclass(frozen=True)
class Event:
    """Something that became of a request in one step. The tokens of all its events are those of its best answer."""

    live: Live
    tokens: tuple[int, ...]  # since the event before
    hypotheses: list[Hypothesis] | None = None  # best first, once all is said
    error: Exception | None = None  # why there will be no answer


@dataclass
class _Batch:
    """Rows that step together, the hypotheses of a line being neighbours."""

    lives: list[Live]
    tokens: Tensor  # (rows, T) that are to be read next
    state: State

    def __add__(self, other: _Batch) -> _Batch:
        tokens = torch.cat([self.tokens, other.tokens])
        return _Batch([*self.lives, *other.lives], tokens, join([self.state, other.state]))

    def without(self, live: Live) -> _Batch:
        width = len(self.tokens) // len(self.lives)
        stay = torch.tensor([i for i, one in enumerate(self.lives) if one is not live], device=self.tokens.device)
        rows = (stay[:, None] * width + torch.arange(width, device=stay.device)).flatten()
        others = [one for one in self.lives if one is not live]
        return _Batch(others, self.tokens[rows], trim(reorder(self.state, rows, stay)))


class Engine:
    """Up to `rows` hypotheses of a model are written at once. What it answers is what the search would answer alone."""

    def __init__(self, model: Autoregressive, *, rows: int = 64) -> None:
        self.model, self.rows = model, rows
        self.waiting: list[Live] = []
        self.batches: dict[int, _Batch] = {}  # by the number of hypotheses of a line
        self.since = APART  # steps since newcomers were read

    @property
    def live(self) -> tuple[Live, ...]:
        """All that have been admitted and are not done."""
        return (*self.waiting, *(live for batch in self.batches.values() for live in batch.lives))

    @property
    def room(self) -> int:
        """Rows that are free."""
        return self.rows - sum(live.ask.how.keep for live in self.live)

    def admit(self, ask: Ask) -> Live:
        """It is read in the next step, or in one of the few after it."""
        self._check(ask)
        if ask.how.keep > self.room:
            raise RegardError(
                f"a request for {ask.how.keep} rows came, but {self.room} of {self.rows} are free; "
                "wait until another is done"
            )
        self.waiting.append(Live(ask))
        return self.waiting[-1]

    @torch.inference_mode()
    def drop(self, live: Live) -> None:
        """Whoever asked has gone: its rows are free at once, and nobody else notices."""
        self.waiting = [one for one in self.waiting if one is not live]
        for width, batch in list(self.batches.items()):
            if batch.lives == [live]:
                del self.batches[width]
            elif live in batch.lives:
                self.batches[width] = batch.without(live)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One word more for everybody. Newcomers are read at every fourth step: more of them at once, and whoever is
        being answered waits less."""
        waiting: list[Live] = []
        self.since += 1
        if self.since >= APART or not self.batches:
            waiting, self.waiting = self.waiting, []
        if waiting:
            self.since = 0
        batches, self.batches = list(self.batches.values()), {}
        told = [event for batch in batches for event in self._advance(batch)]
        return told + [event for lives in _alike(waiting) for event in self._read(lives)]

    def _read(self, lives: list[Live]) -> list[Event]:
        """Where reading fails, one is to blame: then each is read alone."""
        try:
            return self._write(self._begin(lives))
        except Exception as error:
            if len(lives) == 1:
                return self._give_up(lives, error)
        for live in lives:
            self.drop(live)
        return [event for live in lives for event in self._read([live])]

    def _advance(self, batch: _Batch) -> list[Event]:
        """A failure ends those whom it met, and nobody else."""
        try:
            return self._write(batch)
        except Exception as error:
            return self._give_up(batch.lives, error)

    def _give_up(self, lives: list[Live], error: Exception) -> list[Event]:
        for live in lives:
            self.drop(live)
        return [Event(live, (), error=error) for live in lives]

    def _begin(self, lives: list[Live]) -> _Batch:
        device = next(self.model.parameters()).device
        prompt = torch.tensor([list(live.ask.prompt) for live in lives], device=device)
        for live in lives:
            live.begin()
        if not self.model.sourced:
            return _Batch(lives, prompt, self.model.start(rows=len(lives)))
        sources = [torch.tensor(list(live.ask.source or ())) for live in lives]
        lengths = torch.tensor([len(source) for source in sources])
        source = pad_sequence(sources, batch_first=True)
        real = torch.arange(source.shape[1]) < lengths[:, None]
        seen = None if real.all() else real.to(device)  # no mask where nothing is padded
        return _Batch(lives, prompt, self.model.start(source.to(device), seen))

    def _write(self, batch: _Batch) -> list[Event]:
        """One word for a batch; who goes on joins those with as many hypotheses."""
        logits, state = self.model.step(batch.tokens, batch.state)
        lines = [live.line for live in batch.lives]
        advance(lines, logits)
        places: dict[int, list[int]] = {}
        for place, line in enumerate(lines):
            if line.going:
                places.setdefault(len(line.alive), []).append(place)
        for width, stay in places.items():
            tokens, going = go_on(lines, stay, batch.tokens, state)
            if len(stay) < len(lines):
                going = trim(going)
            others = _Batch([batch.lives[place] for place in stay], tokens, going)
            self.batches[width] = self.batches[width] + others if width in self.batches else others
        return [event for live in batch.lives if (event := live.tell()) is not None]

    def _check(self, ask: Ask) -> None:
        most, asked = self.model.longest, len(ask.prompt) + ask.limit - 1
        check(len(ask.prompt), ask.limit)
        if self.model.sourced and not ask.source:
            raise DataError("no source came, but this model reads one before it writes; give its tokens as source")
        if ask.source is not None and not self.model.sourced:
            raise DataError("a source came, but this model only writes; put its tokens at the beginning of the prompt")
        if most is not None and max(asked, len(ask.source or ())) > most:
            raise DataError(
                f"{len(ask.source or ())} tokens to read and {asked} to write came, but this model has positions for "
                f"{most}; shorten the text, or ask for a lower limit"
            )


def _alike(lives: Sequence[Live]) -> Iterator[list[Live]]:
    """Requests to be read together: their prompts are equally long, their sources need little padding."""
    group: list[Live] = []
    for live in sorted(lives, key=_lengths):
        prompt, source = _lengths(live)
        if group and (prompt != _lengths(group[0])[0] or source > 2 * _lengths(group[0])[1] + SPARE):
            yield group
            group = []
        group.append(live)
    if group:
        yield group


def _lengths(live: Live) -> tuple[int, int]:
    return len(live.ask.prompt), len(live.ask.source or ())
