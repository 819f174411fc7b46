"""What GPT owes to pre-training, to the auxiliary loss and to the Transformer: table 5 of Radford et al. 2018.

A small GPT and an LSTM of its size are pre-trained once, then fine-tuned on each of the GLUE sets at hand.
"""

from __future__ import annotations

from typing import Any

from regard.reproduce.layout import by_cell
from regard.reproduce.plot import points
from regard.reproduce.study import AVERAGE, Cell, Part, Published, Study


def part(name: str, recipe: str, measure: str, *files: str, steps: int, tokens: int, **task: Any) -> Part:
    """The labels of GLUE's test sets are not public, so `files` are a development set, measured once, at the end."""
    data = {"valid": (), "test": files}
    return Part(name, recipe, measure, {"data": data, "task": task, "train": {"steps": steps, "tokens": tokens}})


COLA = ("glue/CoLA/in_domain_dev.tsv", "glue/CoLA/out_of_domain_dev.tsv")
PARTS = (  # three epochs, about 30 examples a batch, twice as many of SST-2
    part("CoLA", "cola", "matthews", *COLA, steps=735, tokens=512),
    part("SST-2", "sst2", "accuracy", "glue/SST-2/dev.tsv", steps=3900, tokens=1024),
    part("MRPC", "mrpc", "f1", "glue/MRPC/dev.tsv", steps=363, tokens=4096, similar=True),
    part("STS-B", "sts-b", "pearson", "glue/STS-B/sts-dev.csv", steps=648, tokens=2048, similar=True),
    part("RTE", "rte", "accuracy", "glue/RTE/dev.tsv", steps=240, tokens=2560),
)


def cell(name: str, *theirs: float, begin: str = "gpt-small", **settings: Any) -> Cell:
    each = ", ".join(f"{part.name} {value}" for part, value in zip(PARTS, theirs, strict=True))
    return Cell(name, settings, Published(f"{sum(theirs) / len(theirs):.1f}", each), begin)


ABLATION = {
    "glue": Study(
        title="GPT without its parts, on five sets of GLUE",
        parts=PARTS,
        settings={
            "task": {"auxiliary": 0.5},
            "train": {
                "rate": 3e-4, "schedule": "linear", "warmup": 5, "decay": 0.01,
                "evaluate_every": 0, "save_every": 1000, "final": "last",
            },
        },
        cells=(
            cell("full", 45.4, 91.3, 82.3, 82.0, 56.0),
            cell("without-pretraining", 18.9, 84.0, 79.4, 30.9, 53.8, train={"fresh": True}),
            cell("without-auxiliary", 47.9, 92.0, 84.9, 83.2, 54.4, task={"auxiliary": 0.0}),
            cell("lstm", 30.3, 90.5, 83.2, 71.8, 54.6, begin="lstm-small"),
        ),
        columns=(AVERAGE, *(part.name for part in PARTS), "minutes"),
        lay=by_cell,
        draw=points,
        quick=("full", "without-pretraining"),
        notes=(
            "published: Radford et al. 2018, table 5, of 117 million parameters and GLUE's test sets; averages are of "
            "the sets here, those of their eight are 74.7, 59.9, 75.0 and 69.1",
            "full is the paper's GPT, although it has a higher average without the auxiliary loss",
            "STS-B is Pearson's correlation here as there; tables that show Spearman's cannot be compared",
            "ours are development sets, measured once, after the last step; seeds are of fine-tuning, after one "
            "pre-training of gpt-small and one of lstm-small, whose minutes are not counted",
            "all cells have the same settings; without-pretraining has the pre-trained tokenizer all the same",
        ),
    ),
}  # fmt: skip
