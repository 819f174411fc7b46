"""Attention maps for papers and slides: each is written as PNG and as SVG, the same bytes every time."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from regard.errors import ConfigError, RegardError
from regard.view.capture import Trace, Weights, sides
from regard.view.label import readable, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = 0.32  # inches to a weight
LARGEST = 20.0  # inches to a side of a map, however many tokens it has
NARROWEST = 4.5  # inches: the small print wants as much
LONGEST = 24  # letters of a label
SAYS = {"source": "read", "target": "written", "prefix": "written before"}
CAVEAT = "Brighter is more weight: where the model looked, which need not be why it answered so."
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "Arial Unicode MS")
METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def plot(trace: Trace, stem: Path, *, name: str | None = None, heads: Sequence[int] | None = None) -> list[Path]:
    """One attention, the mean over some heads or all, as `stem`.png and `stem`.svg; without a name the alignment."""
    name = trace.pick(name)
    which = trace.all_heads(name) if heads is None else f"head {', '.join(map(str, heads))}"
    return _draw(trace, stem, name, {f"{name}, {which}": trace.mean(name, heads)})


def plot_heads(trace: Trace, stem: Path, name: str | None = None) -> list[Path]:
    """Each head of one attention in a map of its own, all on one scale, as `stem`.png and `stem`.svg."""
    name = trace.pick(name)
    return _draw(trace, stem, name, {f"{name}, head {head}": weights for head, weights in enumerate(trace.maps[name])})


def _draw(trace: Trace, stem: Path, name: str, maps: dict[str, Weights]) -> list[Path]:
    with style():
        from matplotlib.figure import Figure

        across = math.ceil(math.sqrt(len(maps)))
        down = math.ceil(len(maps) / across)
        rows, columns = ([_short(token) for token in tokens] for tokens in trace.axes(name))
        cell = min(CELL, LARGEST / max(down * len(rows), across * len(columns)))
        wide, high = len(columns) * cell + _room(rows), len(rows) * cell + _room(columns)
        figure = Figure((max(across * wide + 1, NARROWEST), down * high), layout="constrained")
        most = max(float(weights.max()) for weights in maps.values())
        for place, (title, weights) in enumerate(maps.items(), 1):
            axes = figure.add_subplot(down, across, place, title=readable(title))
            axes.imshow(weights, "viridis", vmin=0.0, vmax=most or 1.0, interpolation="nearest")
            _label(axes, rows, columns, min(10.0, 40 * cell))
            axes.set(xlabel=SAYS[sides(name)[1]], ylabel=SAYS[sides(name)[0]])
        figure.colorbar(axes.images[0], ax=figure.axes, label="weight", shrink=0.7, aspect=30)
        _write_around(figure, trace)
        return save(figure, stem)


def _label(axes: Axes, rows: list[str], columns: list[str], size: float) -> None:
    axes.set_xticks(range(len(columns)), columns, fontsize=size, rotation=60, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows, fontsize=size)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.spines[:].set_visible(False)


def _write_around(figure: Figure, trace: Trace) -> None:
    """The title above; below it all the sentence and its answer, and the small print."""
    line = int(figure.get_figwidth() * 12)
    score = "" if trace.score is None else f"score {trace.score:.3f}"
    below = [*textwrap.wrap(readable(trace.caption), line), score, *textwrap.wrap(CAVEAT, line)]
    figure.set_figheight(figure.get_figheight() + 0.5 + 0.15 * len(below))
    figure.suptitle(readable(trace.title))
    figure.supxlabel("\n".join(filter(None, below)), fontsize=8, color="0.3")


def _room(labels: list[str]) -> float:
    """Inches beside a map for its labels and what they are called."""
    return 0.7 + 0.1 * max(map(cell_len, labels))


def _short(token: str) -> str:
    return shorten(readable(token), LONGEST)


@contextmanager
def style() -> Iterator[None]:
    """What makes a file the same each time, and lets other scripts than Latin be written."""
    try:
        import matplotlib
        from matplotlib import font_manager
    except ImportError:
        raise ConfigError("plots need matplotlib, which is not installed; run pip install 'regard[plots]'") from None
    installed = set(font_manager.get_font_names())
    same: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.sans-serif": [font for font in FONTS if font in installed],
        "savefig.dpi": 150,
        "svg.fonttype": "none",
        "svg.hashsalt": "regard",
        "axes.titlesize": 10,
        "text.parse_math": False,  # a token like $x$ is no formula
    }
    with matplotlib.rc_context(same), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # PNG has a box there; in SVG the reader's fonts do it
        yield


def save(figure: Figure, stem: Path) -> list[Path]:
    """Both files whole, or a sentence."""
    paths = []
    for kind, metadata in METADATA.items():
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, metadata=metadata, bbox_inches="tight")
        path = stem.with_name(f"{stem.name}.{kind}")
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(picture.getvalue())
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise RegardError(f"{path}: cannot be written: {error.strerror}; choose another place") from None
        paths.append(path)
    return paths
