"""Whether a trained run looks where the meaning is: alignment error rate on the made task, whose alignments are known.

pipeline = regard.load("runs/demo")
print(measure_alignment(pipeline, attention="decoder.1.cross"))
"""

from __future__ import annotations

from regard.config.data import PairsData
from regard.data.aligned import Aligned, aligned
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError
from regard.metrics import Measure
from regard.metrics.alignment import Links, Span, alignment_error_rate, links
from regard.pipeline.rewrite import Rewriter
from regard.view.capture import CROSS, sides


def measure_alignment(pipeline: Rewriter, count: int = 200, attention: str | None = None) -> Measure:
    """Of so many held-out phrases, by the mean of an attention's heads; without a name the last that looks across.

    The model writes the true answer, as Luong et al. 2015 make it: of another the alignment is not known.
    """
    data = pipeline.recipe.data
    if not isinstance(data, PairsData) or data.made != "spoken":
        raise ConfigError('an alignment is known of the made task alone; train a recipe with made = "spoken"')
    found = [look(pipeline, phrase, attention) for phrase in aligned(data.languages, "test", count)]
    rate = alignment_error_rate(*([one[i] for one in found] for i in range(3)))
    which = attention or "the last cross-attention"
    return Measure(rate, f"{rate.definition}; mean of the heads of {which}, answers forced")


def look(pipeline: Rewriter, phrase: Aligned, attention: str | None = None) -> Links:
    """Where the model looks while it writes the true answer, beside where it should."""
    source = spans(pipeline.tokenizers.source, phrase.source)
    target = spans(pipeline.tokenizers.target, phrase.target)
    trace = pipeline.look(phrase.source, prefixes=[phrase.target], beam=1, nbest=1, shortest=0, longest=len(target) + 1)
    name = trace.pick(attention)
    if sides(name) != CROSS:
        across = [name for name in trace.maps if sides(name) == CROSS]
        raise ConfigError(f"{name} does not look from target to source; name one of {', '.join(across)}")
    return links(trace.mean(name)[: len(target), : len(source)], source, target, phrase.links)


def spans(tokenizer: Tokenizer, text: str) -> list[Span]:
    """The letters that each token says. A mere space says none, be it of the text or put before it."""
    found = tokenizer.inner.encode(text, add_special_tokens=False)
    pieces = zip(tokenizer.tokens(found.ids), found.offsets, strict=True)
    return [(start, start) if piece == "▁" else (start, end) for piece, (start, end) in pieces]
