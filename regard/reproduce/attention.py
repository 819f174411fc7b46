"""Every attention of the lectures in one table: eight scores, no attention, Cho's, two windows, and a hard choice."""

from __future__ import annotations

from typing import Any

from regard.reproduce.layout import by_cell
from regard.reproduce.plot import points
from regard.reproduce.study import COSTS, Cell, Published, Study

LUONG = "BLEU of Luong, Pham and Manning 2015, table 4: WMT14 en→de, newstest2014, other data than ours"
TREVETT = "Trevett's notebooks 1, 2 and 4: Multi30k de→en in lower-cased words of spaCy, whereas ours are cased pieces"
FREE = "free_perplexity"


def cell(name: str, published: Published | None = None, **model: Any) -> Cell:
    return Cell(name, {"model": model}, published)


def looking(name: str, published: Published | None = None, **model: Any) -> Cell:
    """With Luong's decoder; a score goes by its name."""
    return cell(name, published, **{"decoder": "luong", "merge": "sum", "score": name, **model})


CELLS = (
    cell("none", Published("52.00", TREVETT, FREE), decoder="sutskever"),
    cell("cho", Published("34.66", TREVETT, FREE), decoder="cho"),
    looking("dot", Published("18.6", LUONG)),
    looking("scaled_dot"),
    looking("general", Published("17.3", LUONG)),
    looking("additive"),
    looking("concat"),
    looking("mlp"),
    looking("cosine"),
    looking("location", Published("18.1", LUONG)),
    looking("local-m", Published("18.6", LUONG), score="general", window="local-m"),
    looking("local-p", Published("19.0", LUONG), score="general", window="local-p"),
    Cell("hard", {**looking("hard", score="general", choice="hard").settings, "task": {"entropy": 0.1}}),
    cell("bahdanau", Published("28.11", TREVETT), decoder="bahdanau", score="additive"),
)
NOTES = (
    "none and cho know the source by the encoder's last state alone, which cho hears again at every word",
    "from dot to hard only the score, the window or the choice differs: the decoder is Luong's with input feeding, and "
    'the states of both directions are added (merge = "sum"), since dot compares equal widths',
    "local-m, local-p and hard have the score general; the windows reach 10 words to either side; hard is rewarded for "
    "choices that stay open ten times as much as by default (task.entropy = 0.1), without which it settles too early",
    "bahdanau has its own decoder, and both directions beside each other",
)

ATTENTION = {
    "spoken": Study(
        title="Attentions on numbers, dates, times and prices in words, English → German",
        recipe="spoken-rnn",
        cells=tuple(Cell(cell.name, cell.settings) for cell in CELLS),  # nothing is published of this task
        columns=("exact", "perplexity", FREE, *COSTS),
        lay=by_cell,
        draw=points,
        quick=("none", "cho", "dot", "additive"),
        notes=NOTES,
    ),
    "multi30k": Study(
        title="Attentions on Multi30k, German → English, test2016",
        recipe="multi30k-de-en-rnn",
        cells=CELLS,
        columns=("bleu", "perplexity", FREE, *COSTS),
        lay=by_cell,
        draw=points,
        seeds=(0,),
        quick=("none", "cho", "dot", "additive"),
        notes=NOTES,
    ),
}
