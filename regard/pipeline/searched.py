"""What a search found, and what it weighed, as JSON: for `Reply.json` and `Trace.tree`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from regard.data.tokenizer import Tokenizer
from regard.decode.record import ROOT, Record
from regard.decode.search import Hypothesis
from regard.tasks.rewrite import Answer


def listed(answer: Answer, *, drawn: bool) -> list[dict[str, Any]]:
    """The best first. What was drawn is told as often as it was."""
    found = list(zip(answer.texts, answer.hypotheses, strict=True))
    return [
        {"text": text, "score": h.score, "logprob": h.logprob, "finished": h.finished}
        for text, h in (found if drawn else once(found))
    ]


def once(found: Iterable[tuple[str, Hypothesis]]) -> list[tuple[str, Hypothesis]]:
    """Tokens can spell a text in several ways: of answers that read alike, the best."""
    best: dict[str, Hypothesis] = {}
    for text, hypothesis in found:
        best.setdefault(text, hypothesis)
    return list(best.items())


def searched(record: Record, best: Hypothesis, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Every candidate with its parent, its log-probabilities, its score and its fate; and the path of the answer.

    None where nothing was recorded: drawing lots weighs nothing.
    """
    if not record.nodes:
        return None
    record.close()
    words = {token: tokenizer.tokens([token])[0] for token in {node.token for node in record.nodes}}
    said: list[list[int]] = []
    nodes = []
    for node in record.nodes:
        before = [] if node.parent == ROOT else said[node.parent]
        end = node.token == record.eos
        said.append(before if end else [*before, node.token])
        nodes.append({**vars(node), "token": words[node.token], "text": tokenizer.decode(said[-1]), "end": end})
    return {"nodes": nodes, "best": record.path(best), "score": best.score}
