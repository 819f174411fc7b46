"""Figures of a table: points for its cells, curves over the length of the source, or a panel for each task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.reproduce.results import Row
    from regard.reproduce.study import Study

PANELS = {"exact": "exact match, %", "accuracy": "right tokens, %"}  # of the figure over length
WIDE = 20  # a panel whose largest figure is so many times its smallest has a logarithmic scale


def points(study: Study, rows: Sequence[Row], stem: Path) -> list[Path]:
    """The first column, cell by cell: each run a small point, their mean a large one with its deviation."""
    from regard.reproduce.layout import absent
    from regard.view import plots

    with plots.style():
        from matplotlib.figure import Figure

        name = study.columns[0]
        figure = Figure((6.4, 1.2 + 0.32 * len(rows)), layout="constrained")
        axes = figure.add_subplot(title=study.title, xlabel=name)
        for height, row in enumerate(rows):
            mean = row.mean(name)
            if mean is None:
                axes.text(0.02, height, absent(row), transform=axes.get_yaxis_transform(), va="center", color="0.5")
                continue
            axes.scatter(row.values(name), [height] * len(row.values(name)), s=9, color="0.6")
            axes.errorbar(mean, height, xerr=row.spread(name) or 0.0, fmt="o", color="C0", capsize=3)
        axes.set_yticks(range(len(rows)), [row.cell.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x", color="0.9")
        return plots.save(figure, stem)


def curves(study: Study, rows: Sequence[Row], stem: Path) -> list[Path]:
    """Quality against length: one panel a measure, one line a cell, a shadow as wide as the deviation."""
    from regard.reproduce.layout import absent
    from regard.view import plots

    with plots.style():
        from matplotlib.figure import Figure

        lengths = [column.partition(" ")[2] for column in study.columns]
        figure = Figure((4.6 * len(PANELS), 3.6), layout="constrained")
        for place, (measure, says) in enumerate(PANELS.items(), 1):
            axes = figure.add_subplot(1, len(PANELS), place, xlabel="tokens of the source", ylabel=says, ylim=(-3, 103))
            for row in rows:
                at = [i for i, length in enumerate(lengths) if row.values(f"{measure} {length}")]
                mean = [row.mean(f"{measure} {lengths[i]}") or 0.0 for i in at]
                spread = [row.spread(f"{measure} {lengths[i]}") or 0.0 for i in at]
                label = row.cell.name if at else f"{row.cell.name} ({absent(row)})"
                (line,) = axes.plot(at, mean, "o-", markersize=4, label=label)
                low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            axes.set_xticks(range(len(lengths)), lengths)
            axes.grid(color="0.9")
        axes.legend()
        figure.suptitle(study.title)
        return plots.save(figure, stem)


def panels(study: Study, rows: Sequence[Row], stem: Path) -> list[Path]:
    """One small panel a task, one column in it a cell: each run a small point, their mean a large one, and what was
    published a hollow one."""
    from regard.reproduce.layout import label
    from regard.view import plots

    with plots.style():
        from matplotlib.figure import Figure

        across = min(4, len(study.parts))
        down = -(-len(study.parts) // across)
        figure = Figure((2.6 * across, 0.4 + 2.3 * down), layout="constrained")
        figure.suptitle(study.title)
        for place, part in enumerate(study.parts, 1):
            axes = figure.add_subplot(down, across, place)
            axes.set_title(label(part), fontsize="small")
            some = [row.each[part.name] for row in rows]
            for at, row in enumerate(some):
                found, mean = row.values(part.measure), row.mean(part.measure)
                axes.scatter([at] * len(found), found, s=9, color="0.6")
                if mean is not None:
                    axes.errorbar(at, mean, yerr=row.spread(part.measure) or 0.0, fmt="o", color="C0", capsize=3)
                if row.cell.published:
                    axes.plot(at, row.cell.published.value, "o", markerfacecolor="none", color="C1", markersize=8)
            shown = [y for row in some for y in (*row.values(part.measure), *_theirs(row))]
            if shown and min(shown) > 0 and max(shown) > WIDE * min(shown):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")  # texts are shown as they are, so no formulas
            axes.set_xticks(range(len(rows)), [row.cell.name for row in rows], rotation=30, fontsize="small")
            axes.set_xlim(-0.5, len(rows) - 0.5)
            axes.grid(axis="y", color="0.9")
        figure.supxlabel(
            "filled: ours, hollow: published; where nothing is filled, nothing is finished", fontsize="small"
        )
        return plots.save(figure, stem)


def _theirs(row: Row) -> list[float]:
    return [row.cell.published.value] if row.cell.published else []
