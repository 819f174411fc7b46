"""A bounded waiting room in front of one thread, which alone touches its model.

    the front (asyncio)                 the worker (a thread)
    enter() a place, or a refusal
    put(job) ─────────▶ waiting ──admit──▶ live ──step, step, …──▶ tell
    leave() ──────────▶ looked at between two steps; the rows are free before the next one

The worker takes in what has come, makes one step for all that is live, tells what came of it, and begins again: rows
enter and leave in mid-decode, and nobody waits for the longest answer of a batch. What is read in one go asks at each
part of the model whether anybody still waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, NoReturn, Protocol

from regard.decode import Hypothesis
from regard.decode.engine import Ask, Engine, Event, Live
from regard.errors import RegardError
from regard.serve.metrics import Metrics
from regard.serve.refusal import draining, fallen, full, gone, late

log = logging.getLogger("regard.serve")

AT_ONCE = 64  # texts that are read together
BREATH = 0.001  # seconds


class Ticket:
    """A place in the waiting room. What the worker says is heard here, in order; the last of it is `Done` or an error.

    Made in the event loop that will listen.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.monotonic() + seconds
        self.placed, self.left = False, False
        self.loop, self.said = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def tell(self, what: Any) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop has been closed, and nobody listens
            self.loop.call_soon_threadsafe(self.said.put_nowait, what)

    def leave(self) -> None:
        self.left = True

    @property
    def over(self) -> bool:
        """Nobody waits any more."""
        return self.left or time.monotonic() > self.deadline

    async def next(self) -> Any:
        """The next that is said. A worker that is busy with one large product cannot look at the clock; we can."""
        try:
            async with asyncio.timeout(self.deadline - time.monotonic() + 1):
                said = await self.said.get()
        except TimeoutError:
            self.leave()
            raise late(self.seconds) from None
        if isinstance(said, Exception):
            raise said
        return said

    async def done(self) -> Any:
        """The result, whatever was said before it."""
        while not isinstance(said := await self.next(), Done):
            pass
        return said.value


@dataclass(frozen=True)
class Done:
    value: Any


class Listener(Protocol):
    """Hears the tokens of one answer while they come, in the worker's thread."""

    def hear(self, tokens: Sequence[int]) -> bool:
        """True when enough has been said."""


@dataclass(eq=False)
class Writing:
    """Answers to be written token by token. Its result: the hypotheses of each; none where a listener stopped it."""

    ticket: Ticket
    asks: Sequence[Ask]
    listeners: Sequence[Listener | None]
    begun: int = 0  # asks that the engine has got
    missing: int = 0
    found: list[list[Hypothesis]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.missing, self.found = len(self.asks), [[] for _ in self.asks]


Heed = Callable[[], None]


class Stopped(Exception):
    """Nobody waits for what is being read."""


@dataclass(eq=False)
class Reading:
    """Texts that are read in one go. Those of equal `key` are read together; `None` is read alone.

    `read` calls what it is given besides the texts as often as it can: it raises `Stopped` once nobody waits.
    """

    ticket: Ticket
    items: Sequence[Any]
    read: Callable[[Sequence[Any], Heed], Sequence[Any]]
    key: Hashable = None
    at_once: int = AT_ONCE
    found: list[Any] = field(default_factory=list)

    @property
    def rest(self) -> Sequence[Any]:
        return self.items[len(self.found) :]


Job = Writing | Reading


class Worker(Thread):
    def __init__(
        self, name: str, engine: Callable[[], Engine] | None, *, waiting: int, seconds: float, metrics: Metrics
    ) -> None:
        super().__init__(name=f"worker of {name}", daemon=True)
        self.model, self.make_engine = name, engine
        self.engine = engine() if engine else None
        self.rows = self.engine.rows if self.engine else 0
        self.most, self.seconds, self.metrics = waiting, seconds, metrics
        self.bell = Condition()
        self.waiting: deque[Job] = deque()
        self.reserved = 0  # places of requests that are not quite ready to wait
        self.live: dict[Live, tuple[Writing, int]] = {}
        self.open, self.over = True, False

    # ---- the front's side

    def enter(self) -> Ticket:
        """A place, before any work is spent on the request."""
        with self.bell:
            if not self.open:
                raise draining()
            taken = not self.full
            self.reserved += taken
        if not taken:
            self.turn_away()
        return Ticket(self.seconds)

    @property
    def full(self) -> bool:
        return self.reserved + len(self.waiting) >= self.most

    def turn_away(self) -> NoReturn:
        """The front takes a breath, in which the worker has the interpreter for itself: however many are turned away,
        those who were let in are served."""
        time.sleep(BREATH)
        raise full(self.most, 1)

    def put(self, job: Job) -> None:
        with self.bell:
            self.reserved -= 1
            job.ticket.placed = True
            self.waiting.append(job)
            self.bell.notify()

    def give_back(self) -> None:
        """A place that was not needed after all."""
        with self.bell:
            self.reserved -= 1

    @property
    def idle(self) -> bool:
        return not (self.reserved or self.waiting or self.live)

    def close(self) -> None:
        """Takes nothing new; what has been accepted is finished."""
        self.open = False

    def stop(self) -> None:
        """Finishes nothing either: whoever waits is told so."""
        with self.bell:
            self.open, self.over = False, True
            self.bell.notify()

    # ---- the worker's side

    def run(self) -> None:
        while self._has_work():
            try:
                self._turn()
            except Exception:
                log.exception("the engine of %s failed; it is set up anew", self.model)
                self._fall()
        for job in self._jobs():
            job.ticket.tell(draining())

    def _has_work(self) -> bool:
        with self.bell:
            self.bell.wait_for(lambda: self.over or self.waiting or self.live)
            return not self.over

    def _turn(self) -> None:
        self._dismiss()
        self._admit()
        self._read()
        if self.engine is not None and self.live:
            events = self.engine.step()
            self.metrics.tokens.add(sum(len(event.tokens) for event in events), model=self.model)
            for event in events:
                if event.live in self.live:  # else its job has failed a moment ago
                    self._hear(event)
            self.metrics.steps.add(model=self.model)

    def _queue(self) -> list[Job]:
        """As it stands now; the front may append at any moment."""
        with self.bell:
            return list(self.waiting)

    def _jobs(self) -> list[Job]:
        return list({id(job): job for job in (*self._queue(), *(job for job, _ in self.live.values()))}.values())

    def _finish(self, job: Job, said: Done | Exception) -> None:
        """The last word, and nothing is left of it."""
        with self.bell, suppress(ValueError):
            self.waiting.remove(job)
        for live in [live for live, (whose, _) in self.live.items() if whose is job]:
            self._forget(live)
        job.ticket.tell(said)

    def _forget(self, live: Live) -> None:
        assert self.engine is not None
        del self.live[live]
        self.engine.drop(live)

    def _dismiss(self) -> None:
        """Whose client has gone, or whose time is over, leaves before the next step."""
        for job in self._jobs():
            if job.ticket.over:
                cause, why = ("gone", gone()) if job.ticket.left else ("deadline", late(job.ticket.seconds))
                self.metrics.dropped.add(model=self.model, cause=cause)
                self._finish(job, why)

    # ---- writing

    def _admit(self) -> None:
        """In the order in which they came, as far as there is room."""
        for job in self._queue():
            if isinstance(job, Writing) and not self._admitted(job):
                return

    def _admitted(self, job: Writing) -> bool:
        assert self.engine is not None
        try:
            while job.begun < len(job.asks):
                ask = job.asks[job.begun]
                if ask.how.keep > self.engine.room:
                    return False
                self.live[self.engine.admit(ask)] = job, job.begun
                job.begun += 1
        except Exception as error:  # the fault of this one alone
            self._fail(job, error)
            return True
        with self.bell:
            self.waiting.remove(job)
        return True

    def _hear(self, event: Event) -> None:
        job, number = self.live[event.live]
        listener = job.listeners[number]
        try:
            if event.error is not None:
                raise event.error
            enough = bool(listener and event.tokens and listener.hear(event.tokens))
        except Exception as error:
            self._fail(job, error)
            return
        if event.hypotheses is None and not enough:
            return
        job.found[number] = event.hypotheses or []
        self._forget(event.live)
        job.missing -= 1
        if not job.missing:
            job.ticket.tell(Done(job.found))

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, RegardError):
            log.error("%s could not be asked", self.model, exc_info=error)
            self.metrics.fallen.add(model=self.model)
            error = fallen()
        self._finish(job, error)

    def _fall(self) -> None:
        """What was live is lost; what waits can still be answered."""
        lost = {id(job): job for job, _ in self.live.values()}.values()
        self.live.clear()
        for job in lost:
            self._finish(job, fallen())
        self.engine = self.make_engine() if self.make_engine else None
        self.metrics.fallen.add(model=self.model)

    # ---- reading

    def _read(self) -> None:
        """The first that waits, with all that can be read together with it."""
        waiting = [job for job in self._queue() if isinstance(job, Reading)]
        if not waiting:
            return
        first, room = waiting[0], waiting[0].at_once
        together: list[tuple[Reading, Sequence[Any]]] = []
        for job in [first] if first.key is None else waiting:
            if job.key == first.key and room:
                some = job.rest[:room]
                together.append((job, some))
                room -= len(some)
        self._read_together(together)

    def _read_together(self, together: list[tuple[Reading, Sequence[Any]]]) -> None:
        def heed() -> None:
            if self.over or all(job.ticket.over for job, _ in together):
                raise Stopped

        try:
            found = iter(together[0][0].read([item for _, some in together for item in some], heed))
        except Stopped:
            return  # they are dismissed in the next turn, or told that it was the last
        except Exception as error:
            if len(together) == 1:
                self._fail(together[0][0], error)
            else:  # one of them cannot be read, and fails alone
                for one in together:
                    self._read_together([one])
            return
        for job, some in together:
            job.found += [next(found) for _ in some]
            if not job.rest:
                self._finish(job, Done(job.found))
                continue
            with self.bell:  # who has more to read lets the others go first
                self.waiting.remove(job)
                self.waiting.append(job)
