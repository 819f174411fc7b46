"""CNNs or RNNs? Eleven tasks in one table: Bai, Kolter and Koltun 2018, table 1, with a causal Transformer beside.
PTB in characters has two lines: as the file is, and as the reader of the authors' code spells it.

On each task all models have the size of the TCN, whose settings are the task's recipe, and learn from as many examples.
Recurrent networks have the layers of table 3 of the paper and as many units as that size allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from regard.config import read_toml
from regard.recipes import find_recipe
from regard.reproduce.layout import by_part
from regard.reproduce.plot import panels
from regard.reproduce.study import Cell, Own, Part, Published, Study

PAPER = "Bai, Kolter and Koltun 2018, table 1, each the mean of the test over the last three epochs"
COLUMNS = ("lstm", "gru", "rnn", "tcn")

LAST = "one test after training, of the last weights"
BEST = "one test after training, of the weights that are best on the validation split"
EVERY_TOKEN = (
    "every token is counted but the first, where the authors leave out what has no full context before it; "
    "regard evaluate RUN --counted official counts as they do"
)
UNSEARCHED = (
    "nothing was searched for: the paper searched over optimizers, rates, dropout, clipping and biases of the forget "
    "gate of its recurrent networks"
)
OURS = (
    "the TCN has the layers of the paper's table 2 and the training of its recipe, whose comments say what is the "
    "authors' and what is not (regard recipes show NAME); its rate falls along a cosine"
)
LAST_WORD = (
    "the last word is scored given the words before it; the authors' code has read the word itself, and compares it "
    "with what is expected next, as regard evaluate RUN --counted official_last_word does"
)
ONE_CHARACTER = (
    "lines begin and end with a space, as in the file, and their end is one character, which makes 5,101,618 to learn "
    "from; the paper counts 5,059 thousand, which is without the ends; published figures are of another text, "
    "ptb-char-spelt"
)
FIVE_LETTERS = (
    "the reader of the authors' code spells the end of each line as <eos>, five letters of which four are all but "
    'certain (data.documents = "spelt"), which makes 5,269,890 to learn from, and about 3 % fewer bits a character '
    "than of ptb-char"
)

# of recurrent networks
THEIRS = "recurrent networks have the layers, dropout, clipping and, where it tells them, rates of the paper's table 3"
FEWER = "but fewer units: with as many as there they would be larger than the TCN"
RMSPROP = "recurrent networks learn with the paper's RMSprop and a rate of 5e-4, the TCN with Adam and one of 4e-3"
ADAMW = (
    "recurrent networks learn with AdamW: the SGD of the paper's table 3, with a rate of 30, left our LSTM on PTB at "
    "the frequencies of words, and our GRU diverged"
)
UPDATES = {
    2: "recurrent networks, whose steps wait for one another, make half as many updates, of twice the rows, at the "
    "same rate and with as long a warm-up",
    4: "recurrent networks, whose steps wait for one another, make a quarter as many updates, of four times the rows, "
    "at the same rate and with as long a warm-up",
}


@dataclass(frozen=True)
class Task:
    """A line of the table: what was published, and what stands beside the TCN."""

    part: Part
    theirs: tuple[str | None, ...]
    """Of the LSTM, the GRU, the RNN and the TCN."""
    layers: int
    units: tuple[int, int, int]
    """Of the LSTM, the GRU and the RNN."""
    learnt: Mapping[str, Any]
    """What these three learn with."""
    transformer: tuple[int, int, int]
    """Width, layers, context."""
    dropout: float = 0.0
    """Of the recurrent networks; of the Transformer a tenth at most."""
    forget: float = 1.0
    """Bias of the LSTM's forget gate."""
    lane: Mapping[str, Any] = field(default_factory=dict)
    """Windows that carry a state from one to the next have as many tokens as the TCN's count."""
    embedding: int = 0
    """Width of word vectors; as many as units when left out."""
    times: int = 1
    """So many times the rows, in as many fewer updates: steps of a recurrent network wait for one another, and more
    rows beside cost hardly any time."""
    said: tuple[str, ...] = (THEIRS,)
    """What is to be said of the recurrent networks, besides how many updates they make."""

    def recurrent(self, column: int) -> dict[str, Any]:
        model: dict[str, Any] = {"layers": self.layers, "dim": self.units[column], "dropout": self.dropout}
        if COLUMNS[column] == "lstm":
            model["forget"] = self.forget
        if self.lane:
            model["embedding"] = self.embedding or self.units[column]
        return {"model": model, "train": {**self._wider(), **self.learnt}, "data": self.lane}

    def _wider(self) -> dict[str, int]:
        if self.times == 1:
            return {}
        train = read_toml(find_recipe(self.part.recipe))["train"]
        more = {name: train[name] * self.times for name in ("rows", "tokens")}
        return more | {name: train[name] // self.times for name in ("steps", "evaluate_every", "save_every")}

    def notes(self) -> tuple[str, ...]:
        return (*self.said, *([UPDATES[self.times]] if self.times in UPDATES else []))

    def causal(self) -> dict[str, Any]:
        dim, layers, context = self.transformer
        model = {"dim": dim, "layers": layers, "context": context, "heads": max(2, min(4, dim // 8))}
        train = {"optimizer": "adamw", "rate": 1e-3, "warmup": 400, "clip": 1.0}
        return {"model": {**model, "dropout": min(self.dropout, 0.1), "attention_dropout": 0.0}, "train": train}

    def published(self, column: int) -> Published | None:
        printed = self.theirs[column]
        return None if printed is None else Published(printed, PAPER)


def lane(window: int) -> dict[str, Any]:
    return {"order": "lanes", "longest": window, "context": 0}


WORDS = {"optimizer": "adamw", "rate": 2e-3, "clip": 0.3}
MNIST = Task(
    Part("mnist", "tcn-mnist", "accuracy", title="Seq. MNIST", notes=(LAST,)), ("87.2", "96.2", "21.5", "99.0"),
    layers=1, units=(130, 146, 252), learnt={"optimizer": "rmsprop", "rate": 1e-3, "clip": 1.0},
    transformer=(32, 3, 784), times=2,
)  # fmt: skip
COPY = Task(
    Part("copy", "tcn-copy", "loss", title="Copy memory, T = 1000", notes=("chance is 0.0204", LAST)),
    ("0.0204", "0.0197", "0.0202", "3.5e-5"),
    layers=1, units=(50, 62, 106), dropout=0.05, learnt={"optimizer": "rmsprop", "rate": 5e-4, "clip": 1.0},
    transformer=(8, 4, 1020), said=(THEIRS, RMSPROP),
)  # fmt: skip
JSB = Task(
    Part("jsb", "tcn-jsb", "loss", title="JSB Chorales", notes=(BEST,)), ("8.45", "8.43", "8.91", "8.10"),
    layers=2, units=(132, 154, 271), dropout=0.2, forget=10.0, learnt={"rate": 2e-3, "clip": 1.0},
    transformer=(80, 3, 160), said=(f"{THEIRS}, {FEWER}",),
)  # fmt: skip
CHARACTERS = Task(
    Part("ptb-char", "tcn-ptb-char", "bits", title="PTB, characters", notes=(ONE_CHARACTER, EVERY_TOKEN, BEST)),
    (None,) * 4,
    layers=2, units=(500, 578, 1008), dropout=0.1,
    learnt={"optimizer": "adamw", "rate": 2e-3, "clip": 0.5, "evaluate_every": 1245},  # letter by letter, which is long
    lane=lane(320), embedding=100, transformer=(256, 4, 400), times=4, said=(f"{THEIRS}, {FEWER}",),
)  # fmt: skip
SPELT = replace(
    CHARACTERS, theirs=("1.36", "1.37", "1.48", "1.31"),
    part=Part(
        "ptb-char-spelt", "tcn-ptb-char", "bits", {"data": {"documents": "spelt"}},
        "PTB, characters, as the authors read it", (FIVE_LETTERS, EVERY_TOKEN, BEST),
    ),
)  # fmt: skip
TASKS = (
    MNIST,
    replace(
        MNIST, forget=10.0,
        part=Part("mnist-permuted", "tcn-mnist-permuted", "accuracy", title="Permuted MNIST", notes=(LAST,)),
        theirs=("85.7", "87.3", "25.3", "97.2"),
    ),
    Task(
        Part(
            "adding", "tcn-adding", "loss", title="Adding problem, T = 600",
            notes=("chance is 0.1667: the paper's 0.1767 is a misprint", LAST),
        ),
        ("0.164", "5.3e-5", "0.177", "5.8e-5"),
        layers=1, units=(130, 151, 263), learnt={"rate": 2e-3, "clip": 5.0},
        transformer=(32, 4, 600), times=2,
    ),
    COPY,
    JSB,
    Task(
        Part("nottingham", "tcn-nottingham", "loss", title="Nottingham", notes=(BEST,)),
        ("3.29", "3.46", "4.05", "3.07"),
        layers=1, units=(460, 536, 941), dropout=0.1, learnt={"rate": 4e-3, "clip": 1.0},
        transformer=(128, 4, 1793), said=(f"{THEIRS}, {FEWER}",),
    ),
    Task(
        Part("ptb", "tcn-ptb", "perplexity", title="PTB, words", notes=(EVERY_TOKEN, BEST)),
        ("78.93", "92.48", "114.50", "88.68"),
        layers=3, units=(600, 666, 938), dropout=0.4, learnt=WORDS,
        lane=lane(40), transformer=(384, 6, 80), times=4,
        said=(f"recurrent networks have the layers, dropout and clipping of the paper's table 3, {FEWER}", ADAMW),
    ),
    Task(
        Part("wikitext103", "tcn-wikitext103", "perplexity", title="WikiText-103, words", notes=(EVERY_TOKEN, BEST)),
        ("48.4", None, None, "45.19"), layers=2, units=(1350, 1570, 2740), dropout=0.2,
        learnt=WORDS, lane=lane(80), embedding=400, transformer=(400, 13, 160),
        said=(ADAMW,),
    ),
    Task(
        Part("lambada", "tcn-lambada", "perplexity", title="LAMBADA, words", notes=(LAST_WORD, BEST)),
        ("4186", None, "14725", "1279"),
        layers=2, units=(810, 950, 1670), dropout=0.1, learnt=WORDS,
        lane=lane(50), embedding=500, transformer=(500, 3, 256), said=(ADAMW,),
    ),
    CHARACTERS,
    SPELT,
    Task(
        Part("text8", "tcn-text8", "bits", title="text8, characters", notes=(EVERY_TOKEN, BEST)),
        ("1.50", "1.53", "1.69", "1.45"),
        layers=1, units=(954, 1108, 1932), dropout=0.15, learnt={"rate": 1e-2, "clip": 0.5},
        lane=lane(320), embedding=100, transformer=(288, 4, 400), said=(f"{THEIRS}, {FEWER}",),
    ),
)  # fmt: skip
SHORTER = {
    "data": {"length": 500},
    "model": {"levels": 9, "kernel": 6},
    "train": {"steps": 1200, "rows": 16, "evaluate_every": 400, "threads": 1},
}
SHORT = replace(
    COPY, theirs=(None,) * 4, units=(50, 57, 97), transformer=(12, 2, 520),
    part=Part("copy-500", "tcn-copy", "loss", SHORTER, "Copy memory, T = 500", ("chance is 0.0400", LAST)),
    said=(
        "recurrent networks have the layers and dropout of the paper's table 3, but are clipped as with T = 1000",
        RMSPROP,
    ),
)  # fmt: skip
SOON = (JSB, SHORT)
EVERY = {task.part.name: task for task in (*TASKS, *SOON)}

TCN = {
    "sequences": Study(
        title="CNNs or RNNs? Models of one size, task by task",
        parts=tuple(task.part for task in TASKS),
        cells=(
            *(
                Cell(
                    name,
                    {"system": "recurrent", "model": {"cell": name}},
                    each={
                        part: Own(task.recurrent(i), task.published(i), task.times, task.notes())
                        for part, task in EVERY.items()
                    },
                    notes=(UNSEARCHED,),
                )
                for i, name in enumerate(COLUMNS[:3])
            ),
            Cell("tcn", each={part: Own(published=task.published(3)) for part, task in EVERY.items()}, notes=(OURS,)),
            Cell(
                "transformer",
                {"system": "gpt"},
                each={part: Own(task.causal()) for part, task in EVERY.items()},
                notes=(UNSEARCHED,),
            ),
        ),
        columns=tuple(task.part.name for task in TASKS),
        lay=by_part,
        draw=panels,
        seeds=(0,),
        quick=(*COLUMNS, "transformer"),
        quick_parts=tuple(task.part for task in SOON),
        notes=("all models of a task have about the size of its TCN and learn from as many examples",),
    ),
}
