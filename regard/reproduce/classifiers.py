"""What convolutions, recurrent networks and BERT make of the same labelled texts, each of one size and from nothing."""

from __future__ import annotations

from typing import Any

from regard.reproduce.layout import by_cell
from regard.reproduce.plot import points
from regard.reproduce.study import COSTS, Cell, Study


def recurrent(cell: str, units: int, **model: Any) -> Cell:
    return Cell(cell, {"system": "recurrent", "model": {"cell": cell, "layers": 1, "dim": units, **model}})


def bert(dim: int, layers: int, dropout: float, **train: Any) -> Cell:
    model = {"dim": dim, "hidden": 4 * dim, "heads": 4, "layers": layers, "context": 64, "segments": 0}
    return Cell("bert", {"system": "bert", "model": {**model, "dropout": dropout}, "train": train})


NOTES = (
    "all have about the size of the TCN, the same tokens, and as many updates; none has been pre-trained",
    "tcn, lstm and gru read from left to right and are asked at the end; bert sees both sides at once",
    "the test is measured once, of the weights that are best on the validation split",
)

DNA = {
    "splice": Study(
        title="Splice junctions in the DNA of primates, by their letters",
        recipe="dna",
        cells=(
            Cell("tcn"),
            recurrent("lstm", 140, embedding=64, dropout=0.2),
            recurrent("gru", 164, embedding=64, dropout=0.2),
            bert(56, 3, 0.1, rate=1e-3),
        ),
        columns=("accuracy", "loss", *COSTS),
        lay=by_cell,
        draw=points,
        quick=("tcn", "gru"),
        notes=(
            *NOTES,
            "a tenth of the examples is the test, another validation, told by their letters; one example is 0.3 %",
            "the networks of 1991 were right in 93.3 % (back-propagation) and 93.7 % (KBANN), in a cross-validation of "
            "ten folds over 1,000 of the examples: the data's own readme, weighted by its classes",
        ),
    ),
}
SENTIMENT = {
    "sst": Study(
        title="Sentences about films, liked or not (SST, from 6,920 sentences and no phrases)",
        recipe="sentiment",
        cells=(
            Cell("tcn"),
            recurrent("lstm", 244, embedding=128, dropout=0.5),
            recurrent("gru", 286, embedding=128, dropout=0.5),
            bert(128, 2, 0.3),
        ),
        columns=("accuracy", "loss", *COSTS),
        lay=by_cell,
        draw=points,
        quick=("tcn", "gru"),
        notes=NOTES,
    ),
}
