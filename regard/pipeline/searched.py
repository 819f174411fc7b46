"""What a search weighed, as JSON: for `Trace.tree`."""

from __future__ import annotations

from typing import Any

from regard.data.tokenizer import Tokenizer
from regard.decode.record import ROOT, Record
from regard.decode.search import Hypothesis


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
