"""The rungs from one vector to the Transformer, by the published definitions.

Trevett's notebooks climb them on Multi30k, German → English. Their trap: the recurrent networks' perplexity is that of
a decoder which hears itself, the Transformer's that of one which hears the true words; so the table shows both.
"""

from __future__ import annotations

from typing import Any

from regard.reproduce.layout import by_cell
from regard.reproduce.plot import points
from regard.reproduce.study import COSTS, Cell, Published, Study

WHERE = "Trevett's notebooks 1, 2, 4 and 6, one run each, in words of spaCy"
FREE = "free_perplexity"


def rung(name: str, published: Published, **settings: Any) -> Cell:
    return Cell(name, settings, published)


LADDER = {
    "multi30k": Study(
        title="The ladder on Multi30k, German → English in lower-cased words, test2016",
        recipe="multi30k-de-en-words",
        cells=(
            rung(
                "none",
                Published("52.00", WHERE, FREE),
                model={"decoder": "sutskever", "cell": "lstm", "layers": 2, "bidirectional": False, "reverse": True},
            ),
            rung("cho", Published("34.66", WHERE, FREE), model={"decoder": "cho", "bidirectional": False}),
            rung("attention", Published("28.11", WHERE), model={"decoder": "bahdanau"}),
            rung(
                "transformer",
                Published("36.52", WHERE),
                system="transformer",
                task={"forcing": 1.0},
                model={
                    "dim": 256, "heads": 8, "layers": 3, "hidden": 512, "bias": True,
                    "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1,
                    "positions": "learned", "context": 256, "tied": "none", "std": 1 / 64,
                },
                train={"rate": 5e-4, "metric": "loss"},
            ),
        ),
        columns=("bleu", "perplexity", FREE, *COSTS),
        lay=by_cell,
        draw=points,
        quick=("none", "attention"),
        notes=(
            "attention was published with a free perplexity of 23.18, the Transformer with a perplexity of 5.316",
            "ours are Moses' words, not spaCy's (7,855 and 5,918 that occur twice, against 7,853 and 5,893); batches "
            "are of 2,048 tokens and similar length, about 128 sentences; weights begin as everywhere in Regard, but "
            "for the Transformer's word vectors and head, which have the spread of the notebook's (std = 1/64)",
            "cho and attention tell words by our deep output (maxout, as wide as the word vectors), where the "
            "notebooks have one matrix from state, word and context to all words: so they have 9.1 and 12.4 million "
            "parameters, not 14.2 and 20.5",
            "recurrent decoders hear the true word before with probability 0.5 in training, and the best of ten epochs "
            "is the one with the lowest free perplexity of the validation split; answers are greedy",
        ),
    ),
}  # fmt: skip
