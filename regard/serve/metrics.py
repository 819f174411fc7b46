"""What has happened, counted, as Prometheus reads it: https://prometheus.io/docs/instrumenting/exposition_formats

Two threads count, the front and the worker of a model, so each count is made under one lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass
class Counter:
    name: str
    help: str
    values: dict[Labels, float] = field(default_factory=lambda: defaultdict(float))
    lock: Lock = field(default_factory=Lock)

    def add(self, amount: float = 1, **labels: str) -> None:
        with self.lock:
            self.values[tuple(sorted(labels.items()))] += amount

    def total(self, **labels: str) -> float:
        """Of all counts with these labels, whatever other labels they have."""
        with self.lock:
            return sum(value for key, value in self.values.items() if labels.items() <= dict(key).items())

    def lines(self) -> Iterator[str]:
        yield from _about(self.name, self.help, "counter")
        with self.lock:
            yield from (_line(self.name, labels, value) for labels, value in sorted(self.values.items()))


@dataclass
class Gauge:
    """Read when somebody asks; by the name of the model."""

    name: str
    help: str
    read: Callable[[], dict[str, float]]

    def lines(self) -> Iterator[str]:
        yield from _about(self.name, self.help, "gauge")
        yield from (_line(self.name, (("model", model),), value) for model, value in sorted(self.read().items()))


@dataclass
class Histogram:
    name: str
    help: str
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    sums: dict[Labels, float] = field(default_factory=lambda: defaultdict(float))
    lock: Lock = field(default_factory=Lock)

    def add(self, seconds: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self.lock:
            self.counts.setdefault(key, [0] * (len(SECONDS) + 1))[bisect_left(SECONDS, seconds)] += 1
            self.sums[key] += seconds

    def lines(self) -> Iterator[str]:
        yield from _about(self.name, self.help, "histogram")
        with self.lock:
            for labels, counts in sorted(self.counts.items()):
                for n, bound in enumerate((*map(str, SECONDS), "+Inf"), 1):
                    yield _line(f"{self.name}_bucket", (*labels, ("le", bound)), sum(counts[:n]))
                yield _line(f"{self.name}_sum", labels, self.sums[labels])
                yield _line(f"{self.name}_count", labels, sum(counts))


class Metrics:
    def __init__(self) -> None:
        self.requests = Counter("regard_requests_total", "requests answered, by route and status")
        self.seconds = Histogram("regard_request_seconds", "from the head of a request to the end of its answer")
        self.dropped = Counter("regard_dropped_total", "requests that were stopped, by model and cause")
        self.tokens = Counter("regard_tokens_total", "tokens written, by model")
        self.steps = Counter("regard_steps_total", "steps that the engine of a model has made")
        self.fallen = Counter("regard_fallen_total", "times that a model failed and went on anew")
        self.gauges: list[Gauge] = []

    def text(self) -> str:
        every: tuple[Counter | Gauge | Histogram, ...]
        every = (self.requests, self.seconds, self.dropped, self.tokens, self.steps, self.fallen, *self.gauges)
        return "\n".join(line for one in every for line in one.lines()) + "\n"


def _about(name: str, told: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{told}}} {value:g}" if told else f"{name} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
