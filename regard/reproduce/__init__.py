"""Published tables as commands. A table is a study: cells × seeds, each an ordinary run folder.

study      what a table is made of; needs no torch
attention  every attention of the lectures in one table
ladder     from one vector to the Transformer, by published definitions
length     quality against length
ablation   what pre-training, the auxiliary loss and the Transformer are worth to GPT
tcn        convolutions, recurrent networks and the Transformer on eleven tasks
classifiers the same and BERT: is a film liked, does an exon begin here
work       from jobs to finished runs, here or side by side
results    what finished runs say
layout     into lines and columns
table      in the terminal, as Markdown, as JSON
plot       as a figure
"""

from __future__ import annotations

from regard.errors import ConfigError, nearest
from regard.reproduce.ablation import ABLATION
from regard.reproduce.attention import ATTENTION
from regard.reproduce.classifiers import DNA, SENTIMENT
from regard.reproduce.ladder import LADDER
from regard.reproduce.length import LENGTH
from regard.reproduce.study import Study
from regard.reproduce.tcn import TCN

STUDIES: dict[str, dict[str, Study]] = {
    "attention": ATTENTION,
    "ladder": LADDER,
    "length": LENGTH,
    "gpt-ablation": ABLATION,
    "tcn": TCN,
    "sentiment": SENTIMENT,
    "dna": DNA,
}


def find_study(name: str, data: str | None) -> tuple[str, Study]:
    """A table by name, on the data set of that name or on its first."""
    if name not in STUDIES:
        raise ConfigError(f"reproduce: no table {name!r}; {nearest(name, STUDIES)}")
    data = data or next(iter(STUDIES[name]))
    if data not in STUDIES[name]:
        raise ConfigError(f"--data: the table {name!r} is not made of {data!r}; {nearest(data, STUDIES[name])}")
    return data, STUDIES[name][data]
