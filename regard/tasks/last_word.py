"""The last word of each line, given the line before it: LAMBADA (Paperno et al. 2016), whose lines are chosen so that a
reader knows their last word from the whole passage, and from its last sentence alone does not.

The authors of the TCN feed the word itself too, and compare it with what the model expects to come next. So they
measure how much a model expects a word to come twice; that can be asked for by name, to stand beside their figure.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data.batch import pad
from regard.data.stream import Stream
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError
from regard.metrics import Measure
from regard.tasks.rewrite import by_length

MEASURES = ("loss", "perplexity", "accuracy")
AHEAD = {"last_word": 1, "official_last_word": 0}  # of what was read last, the token that is asked for
LOGITS = 2**24  # alive at once


@torch.inference_mode()
def measure(
    model: nn.Module, tokenizer: Tokenizer, held: Stream, *, tokens: int = 16_384, ahead: int = 1
) -> dict[str, float]:
    """Of a stream whose documents are lines. A word is told where each of its tokens is the likeliest."""
    lines = [_line(model, tokenizer, ids.tolist(), ahead) for ids in held.documents() if len(ids)]
    if not lines:
        raise DataError(f"the held-out text has {len(held)} tokens and no line, so no last word; give lines of text")
    device = next(model.parameters()).device
    nll, right = 0.0, 0
    for some in by_length({i: len(line.ids) for i, line in enumerate(lines)}, tokens):
        text, real = pad([lines[i].ids for i in some], tokenizer.marks.pad)
        begins = torch.tensor([lines[i].begin for i in some])
        last = (real & (torch.arange(text.shape[1]) >= begins[:, None]))[:, ahead:].to(device)
        text = text.to(device)
        hidden, _ = model(None, None, text[:, : text.shape[1] - ahead])  # what follows a token does not change it
        row, states, wanted = last.nonzero()[:, 0], hidden[last], text[:, ahead:][last]
        nll -= float(model.head.logprobs(states, wanted).double().sum())  # type: ignore[union-attr, operator]
        missed = (_likeliest(model, states) != wanted) | (wanted == tokenizer.marks.unknown)
        right += len(some) - len(row[missed].unique())
    what = f"the last word of {len(lines)} lines, with the space before it, each given its line"
    what += "" if ahead else " and itself, as the TCN's authors do: whether it is expected to come twice"
    lost, told = f"mean negative log-likelihood of {what}", f"likeliest token after token, in % of {what}"
    return {
        "loss": Measure(nll / len(lines), lost),
        "perplexity": Measure(math.exp(min(nll / len(lines), 700)), f"exp of the {lost}"),
        "accuracy": Measure(100 * right / len(lines), f"{told}; an unknown word is never told"),
    }


class _Line(NamedTuple):
    ids: list[int]
    begin: int  # of its last word


def _line(model: nn.Module, tokenizer: Tokenizer, ids: list[int], ahead: int) -> _Line:
    """After the mark that ends the line before, and no longer than the model can read."""
    begin, text = len(ids) - 1, tokenizer.decode(ids)
    while begin and not _is_word(text[len(tokenizer.decode(ids[:begin])) :]):
        begin -= 1
    most = getattr(model, "longest", None)
    cut = 0 if most is None else max(0, len(ids) + 1 - ahead - most)
    return _Line([tokenizer.marks.end, *ids][cut:], max(1, begin + 1 - cut))


def _is_word(text: str) -> bool:
    return text[:1].isspace() and not text.isspace()


def _likeliest(model: nn.Module, states: Tensor) -> Tensor:
    """The likeliest token after each state; the table of logits is made some rows at a time."""
    rows = max(1, LOGITS // len(model.head.weight))  # type: ignore[union-attr, arg-type]
    return torch.cat([model.head.logits(some).argmax(-1) for some in states.split(rows)])  # type: ignore[union-attr, operator]
