"""An attention map in the terminal: a row for each token that asks, a column for each that is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.style import Style
from rich.text import Text

from regard.view.capture import Trace, Weights, sides
from regard.view.label import ELLIPSIS, letters, readable, shorten
from regard.view.scale import viridis

CELL = 2  # columns of the terminal to a weight: about as wide as a line is high, and room for a Chinese character
TALLEST = 12  # letters of a column's label
WIDEST = 18  # cells of a row's label
SAYS = {"source": "what was read", "target": "what was written", "prefix": "what had been written"}


@dataclass(frozen=True)
class Ink:
    """How a share of the largest weight is painted, and the word for more of it."""

    paint: Callable[[float], Text]
    more: str


def shades(*steps: str) -> Ink:
    return Ink(lambda share: Text(steps[round(share * (len(steps) - 1))]), "denser")


COLOURS = Ink(lambda share: Text(" " * CELL, Style(bgcolor=viridis(share))), "brighter")
BLOCKS = shades("· ", "░░", "▒▒", "▓▓", "██")  # the dots lead the eye from a row's label to its column
ASCII = shades(". ", "::", "++", "**", "##")


def draw(trace: Trace, *, name: str | None = None, head: int | None = None, width: int | None = None) -> RenderableType:
    """One head of an attention or their mean; without a name the alignment. As wide as the terminal or as told."""
    name = trace.pick(name)
    weights = trace.mean(name, None if head is None else [head])
    rows, columns = (tuple(map(readable, tokens)) for tokens in trace.axes(name))
    heads = trace.all_heads(name) if head is None else f"head {head}"
    heading = readable(", ".join(filter(None, (trace.title, name, heads))))
    asks, asked = (SAYS[side] for side in sides(name)) if trace.source else ("what came next", "what had come")
    return Drawing(weights, rows, columns, heading, f"rows: {asks}; columns: {asked}", width)


@dataclass(frozen=True, eq=False)
class Drawing:
    """In colours where the terminal has them, else in shades; in panels where it is too narrow for all columns."""

    weights: Weights  # (rows, columns)
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    heading: str
    legend: str
    width: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width or options.max_width, options.max_width)
        yield Constrain(Group(*self._lines(choose_ink(console, options), width)), width)

    def _lines(self, ink: Ink, width: int) -> Iterator[Text]:
        margin = max(1, min(max(map(cell_len, self.rows)), WIDEST, width // 3))
        yield Text(self.heading, "bold")
        for columns in panels(len(self.columns), (width - margin - 1) // CELL):
            if len(columns) < len(self.columns):
                yield Text(f"columns {columns.start + 1} to {columns.stop} of {len(self.columns)}", "dim")
            yield from self._panel(ink, margin, columns)
            yield Text()
        yield self._scale(ink)
        yield Text(self.legend)

    def _panel(self, ink: Ink, margin: int, columns: range) -> Iterator[Text]:
        for line in upright([self.columns[c] for c in columns]):
            yield _line(" " * (margin + 1) + line)
        most = self.weights.max() or 1.0
        for token, weights in zip(self.rows, self.weights, strict=True):
            label = shorten(token, margin)
            row = _line(" " * (margin - cell_len(label)) + label + " ")
            yield row.append_text(Text().join(ink.paint(float(weights[c] / most)) for c in columns))

    def _scale(self, ink: Ink) -> Text:
        steps = Text().join(ink.paint(step / 4) for step in range(5))
        return Text.assemble("weight 0 ", steps, f" {self.weights.max():.2f}, {ink.more} is more")


def choose_ink(console: Console, options: ConsoleOptions) -> Ink:
    if console.color_system in ("256", "truecolor") and not console.no_color:
        return COLOURS
    return ASCII if options.ascii_only else BLOCKS


def panels(count: int, room: int) -> list[range]:
    """`count` columns in as few panels as have room for them, all but equally wide."""
    pieces = -(-count // max(room, 1))
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    return [range(*edge) for edge in pairwise(edges)]


def upright(labels: Sequence[str]) -> list[str]:
    """Labels written from top to bottom, each over its column and ending right above it."""
    tall = [_cut(letters(label)) for label in labels]
    height = max(map(len, tall))
    rows = zip(*([""] * (height - len(column)) + column for column in tall), strict=True)
    return ["".join(set_cell_size(letter, CELL) for letter in row) for row in rows]


def _cut(column: list[str]) -> list[str]:
    return column if len(column) <= TALLEST else [*column[: TALLEST - 1], ELLIPSIS]


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="crop")
