"""What was asked for, and what the last races gave: a table and a picture, made of the tables in results/.

    python -m bench.goals                # writes both, and prints the table

A goal is met where the whole 95 % interval lies above it. Races of several kinds of machines stand beside each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, Comparison, refuse_others

DOCS = RESULTS.parents[1] / "docs"
PAGE, PICTURE = DOCS / "speed.md", DOCS / "pictures" / "speed.png"
HEAD = "| work | command | goal (stretch) | reached | met |"
KINDS = {  # of tables, and what they are called here
    "gpu": "H200", "cpu": "Zen 5", "cpu-zen4": "Zen 4", "cpu-avx2": "AVX2", "cpu-amx": "Intel with AMX",
}  # fmt: skip
CTRANSLATE2, GENERATE, DEFAULT = "CTranslate2 int8", "Hugging Face generate", "Hugging Face, default batches"
BUCKETED, STATIC = "Hugging Face, bucketed batches", f"{GENERATE}, static cache and compiled"


@dataclass(frozen=True)
class Goal:
    told: str
    table: str  # results/<table>-<kind>.json,
    line: str  # its line,
    peer: str  # and who is raced in it
    mark: float
    stretch: float | None = None

    def reached(self, kind: str) -> tuple[float, float, float] | None:
        """The median with its interval; None where it was not raced."""
        place = RESULTS / f"{self.table}-{kind}.json"
        rows = json.loads(place.read_text("utf-8"))["rows"] if place.exists() else []
        lines = (compared(row) for row in rows if row["work"] == self.line)
        return next((line.ratio(self.peer) for line in lines if self.peer in line.seconds), None)


def compared(row: dict[str, Any]) -> Comparison:
    return Comparison(row["work"], row["unit"], next(iter(row["amount"])), row["amount"], row["seconds"])


ON_A_GPU = [
    Goal("GPT-2 of 124 million parameters learns, against compiled Hugging Face",
         "pretrain", "GPT-2", "Hugging Face", 1.25, 1.4),
    Goal("the base Transformer learns, real lengths, against compiled Hugging Face with its own batches",
         "train_translation", "base, training", DEFAULT, 1.5, 2.5),
    Goal("… with our batches in its hands", "train_translation", "base, training", BUCKETED, 1.5, 2.5),
    Goal("… compiled for one shape", "train_translation", "base, training", "Hugging Face for one shape", 1.5, 2.5),
    Goal("… and recorded", "train_translation", "base, training", "Hugging Face for one shape, recorded", 1.5, 2.5),
    Goal("… with our batches in its hands, of 65,536 tokens for both",
         "train_translation", "base, training, large batches", BUCKETED, 1.5, 2.5),
    Goal("BERT-base learns, real lengths, against compiled Hugging Face with sequences in random order",
         "pretrain", "BERT, any lengths", DEFAULT, 1.5, 2.5),
    Goal("… with our batches in its hands", "pretrain", "BERT, any lengths", BUCKETED, 1.5, 2.5),
    Goal("GPT-2 XL goes on, batch 1, against generate", "decode", "GPT-2 xl, batch 1", GENERATE, 15),
    Goal("… with its static cache, compiled",
         "decode", "GPT-2 xl, batch 1", STATIC, 2.5),
    Goal("GPT-2 of 124 million parameters goes on, batch 1", "decode", "GPT-2 124M, batch 1", GENERATE, 20, 40),
    Goal("… batch 32", "decode", "GPT-2 124M, batch 32", GENERATE, 5, 10),
    Goal("translation, base, beam 4, batch 64, against generate",
         "decode", "translation base, batch 64, beam 4", GENERATE, 6, 12),
]  # fmt: skip
ON_A_CPU = [
    *(
        Goal(f"translation in int8, {size}, batch {batch}, beam {beam}, against CTranslate2",
             "fast", f"{size}, batch {batch}, beam {beam}", CTRANSLATE2, *marks)
        for batch, marks in ((1, (1.2, 2)), (32, (0.9, 1.2))) for size in ("small", "base") for beam in (1, 4)
    ),
    Goal("GPT-2 of 124 million parameters goes on in int8, batch 1, against CTranslate2",
         "fast", "GPT-2 124M, batch 1", CTRANSLATE2, 1.2, 2.5),
    Goal("texts of mixed lengths are read in fp32, against onnxruntime",
         "fast", "reading 64 texts, fp32", "onnxruntime fp32", 1.5, 2),
    Goal("… both in int8", "fast", "reading 64 texts, int8", "onnxruntime int8", 1.2, 1.7),
    Goal("translation without the accelerator, small, batch 1, against generate",
         "translate", "small, batch 1, beam 1", GENERATE, 1.5),
    Goal("… base", "translate", "base, batch 1, beam 1", GENERATE, 1.3),
    Goal("… small, against generate with its static cache, compiled",
         "translate", "small, batch 1, beam 1", STATIC, 1.5),
    Goal("… base", "translate", "base, batch 1, beam 1", STATIC, 1.3),
    Goal("a translator learns, against Hugging Face with its own batches",
         "train_translation", "small, training", DEFAULT, 2.3),
    Goal("… with our batches in its hands", "train_translation", "small, training", BUCKETED, 1),
]  # fmt: skip
PLACES = {("gpu",): ON_A_GPU, ("cpu", "cpu-zen4", "cpu-avx2", "cpu-amx"): ON_A_CPU}


def main() -> None:
    refuse_others(sys.argv[1:], [])
    lines = [*table()]
    print("\n".join(lines))
    PAGE.write_text(put_in(PAGE.read_text("utf-8"), lines), "utf-8")
    draw(PICTURE)


def table() -> Iterator[str]:
    yield HEAD
    yield "|---|---|---|---|---|"
    for kinds, goals in PLACES.items():
        for goal in goals:
            found = {kind: ratio for kind in kinds if (ratio := goal.reached(kind))}
            reached = "; ".join(f"{KINDS[kind]} {said(ratio)}" for kind, ratio in found.items()) or "not raced yet"
            asked = f"{goal.mark:g}×" + (f" ({goal.stretch:g}×)" if goal.stretch else "")
            yield f"| {goal.told} | `bench.{goal.table}` | {asked} | {reached} | {met(goal, found)} |"


def said(ratio: tuple[float, float, float]) -> str:
    return "**{:.2f}×** ({:.2f}–{:.2f})".format(*ratio)


def met(goal: Goal, found: dict[str, tuple[float, float, float]]) -> str:
    verdicts = {
        kind: "yes" if low >= goal.mark else "by the median" if median >= goal.mark else "no"
        for kind, (median, low, _) in found.items()
    }
    if len({*verdicts.values()}) == 1:
        return next(iter(verdicts.values()))
    return "; ".join(f"{KINDS[kind]} {verdict}" for kind, verdict in verdicts.items())


def put_in(page: str, lines: list[str]) -> str:
    """In the place of the table that is there."""
    before, head, after = page.partition(HEAD)
    if not head:
        sys.exit(f"{PAGE.name} has no table that begins with {HEAD!r}; put that line where it is to stand")
    rest = after[after.index("\n\n") :]
    return before + "\n".join(lines) + rest


def draw(path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from regard.view import plots

    names = "tab:green", "tab:blue", "tab:red", "tab:orange", "tab:purple"
    colours = dict(zip(KINDS, names, strict=True))
    with plots.style():
        figure = Figure((11, 0.32 * sum(map(len, PLACES.values())) + 1.6), layout="constrained")
        heights = [len(goals) for goals in PLACES.values()]
        for axes, (kinds, goals) in zip(
            figure.subplots(len(PLACES), height_ratios=heights), PLACES.items(), strict=True
        ):
            for row, goal in enumerate(goals):
                axes.plot([goal.mark] * 2, [row - 0.4, row + 0.4], color="black", linewidth=2)
                if goal.stretch:
                    axes.plot([goal.stretch] * 2, [row - 0.4, row + 0.4], color="black", linewidth=1, linestyle=":")
                for place, kind in enumerate(kinds):
                    if ratio := goal.reached(kind):
                        median, low, high = ratio
                        at = row + 0.76 / len(kinds) * (place - (len(kinds) - 1) / 2)
                        axes.plot([low, high], [at, at], color=colours[kind], linewidth=2, alpha=0.5)
                        axes.plot(median, at, "o", color=colours[kind], markersize=5)
            axes.set_yticks(range(len(goals)), [goal.told for goal in goals], fontsize=8)
            axes.set_ylim(len(goals) - 0.4, -0.6)
            axes.set_xscale("log")
            ticks = [tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 40) if tick <= 1.1 * _furthest(kinds, goals)]
            axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
            axes.minorticks_off()
            axes.grid(axis="x", color="0.9")
            axes.set_axisbelow(True)
            drawn = [Line2D([], [], color=colours[kind], marker="o", markersize=5, label=KINDS[kind]) for kind in kinds]
            axes.legend(handles=[*drawn, Line2D([], [], color="black", linewidth=2, label="goal"),
                                 Line2D([], [], color="black", linestyle=":", label="stretch")],
                        loc="lower left", bbox_to_anchor=(0, 1), ncols=6, frameon=False, fontsize=8)  # fmt: skip
        figure.savefig(path, dpi=110, metadata=plots.METADATA["png"] | {"Description": "\n".join(table())})


def _furthest(kinds: tuple[str, ...], goals: list[Goal]) -> float:
    return max(ratio[2] for goal in goals for kind in kinds if (ratio := goal.reached(kind)))


if __name__ == "__main__":
    main()
