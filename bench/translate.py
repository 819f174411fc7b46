"""Translation on a CPU: ours against Hugging Face `generate` and a loop over torch.nn.Transformer, the same weights,
the same 30 tokens out. Each engine has processes of its own (bench/apart.py); bench/decode.py is for GPUs.

python -m bench.translate
python -m bench.translate --tiny     # a small model, nothing is written, to see that it works
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

from bench import apart
from bench.harness import LEAST, Comparison, refuse_others, report
from bench.peers import BOS, EOS, PAD, marian, ours, plain, ready
from regard.decode import beam, greedy
from regard.decode.filters import at_least
from regard.models.transformer import Transformer

LENGTH = 30
FEW = 2  # sentences for a loop without a cache: 32 at once take it five times as long as us, and minutes
OFTEN = 15  # rounds, where one takes no time,
AGAIN = 4  # and answers in each: who comes from sleep is slow at first

Answers = list[list[int]]


@dataclass(frozen=True)
class Cell:
    size: str
    vocab: int
    batch: int
    width: int  # of the beam

    @property
    def name(self) -> str:
        return f"{self.size}, batch {self.batch}, beam {self.width}"

    @property
    def short(self) -> bool:
        return (self.size, self.batch) == ("small", 1)

    @property
    def answers(self) -> int:
        return AGAIN if self.short else 1

    @property
    def sources(self) -> Tensor:
        return torch.randint(4, self.vocab, (self.batch, LENGTH), generator=torch.Generator().manual_seed(1))


Answer = Callable[[Cell], Answers]

CELLS = [
    *(Cell("small", 8_000, batch, width) for batch in (1, 32) for width in (1, 4)),
    *(Cell("base", 32_000, batch, width) for batch, width in ((1, 1), (1, 4), (8, 1))),
]
TINY = [Cell("tiny", 97, 2, 1), Cell("tiny", 97, 2, 4)]


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, ["--tiny"])
    tiny = "--tiny" in asked
    with ExitStack() as stack:
        running = {name: stack.enter_context(apart.engines(engine, name)) for name in ENGINES}
        found = [compare(cell, running) for cell in (TINY if tiny else CELLS)]
    note = (
        f"{LENGTH} tokens out, sources of {LENGTH} tokens, equal weights; weights and arithmetic in fp32, by PyTorch "
        "on all sides: ours step by step, without the accelerator (bench/fast.py has it). The answers were checked to "
        "be the same tokens. Each engine in processes of its own, at its best number of threads (in brackets). "
        "torch.nn.Transformer has no cache: its decoder reads all words so far for each new one. It has no beams "
        "either, and is raced at beam 1 and with few sentences alone. generate with its static cache, compiled, is "
        "raced with one sentence at beam 1."
    )
    if tiny:
        print(note, *found, sep="\n")
    else:
        report("translate", "Translation against Hugging Face generate and torch.nn.Transformer", note, found)


def compare(cell: Cell, running: dict[str, dict[str, apart.Engine]]) -> Comparison:
    able: dict[str, dict[str, apart.Run]] = {
        name: {way: partial(one, cell) for way, one in ways.items()}
        for name, ways in running.items()
        if can(name, cell)
    }
    first, *others = (apart.any_of(ways)() for ways in able.values())
    assert all(first == other for other in others), f"the engines disagree: {cell.name}"
    return apart.compare(cell.name, cell.answers * cell.batch * LENGTH, able, rounds=OFTEN if cell.short else LEAST)


def can(name: str, cell: Cell) -> bool:
    """Who has no cache is slow where there are many; to compile takes a while for each cell."""
    most = {LOOP: FEW, STATIC: 1}.get(name)
    return most is None or (cell.width == 1 and cell.batch <= most)


# ---- the engines, each in processes of its own


def engine(_: int, name: str) -> Answer:
    made = cache(ENGINES[name])
    return lambda cell: [made(cell.size, cell.vocab)(cell) for _ in range(cell.answers)][-1]


def alike(size: str, vocab: int) -> tuple[Transformer, nn.Module]:
    """Of equal weights; ours takes the other's table of positions."""
    model = ours(size, vocab).eval()
    return model, marian(model).eval()


def regard(size: str, vocab: int) -> Answer:
    model = ready(alike(size, vocab)[0])

    def answer(cell: Cell) -> Answers:
        search = greedy if cell.width == 1 else partial(beam, keep=cell.width)
        prompt = torch.full((cell.batch, 1), BOS)
        with torch.inference_mode():
            state = model.start(cell.sources, None)  # nothing is padded, as the peer finds out by itself
        answers = search(model.step, state, prompt, eos=EOS, limit=LENGTH, filters=(at_least(LENGTH, EOS),))
        return [list(a.tokens if cell.width == 1 else a[0].tokens) for a in answers]

    return answer


def hugging_face(size: str, vocab: int, *, static: bool = False) -> Answer:
    from transformers import GenerationConfig

    _, model = alike(size, vocab)
    if static:
        model.forward = torch.compile(model.forward)

    def answer(cell: Cell) -> Answers:
        how = GenerationConfig(
            num_beams=cell.width, do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH,
            early_stopping=cell.width > 1, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS,
            use_cache=True, cache_implementation="static" if static else None,
        )  # fmt: skip
        real = torch.ones(cell.batch, LENGTH, dtype=torch.long)
        with torch.inference_mode():
            return model.generate(cell.sources, attention_mask=real, generation_config=how)[:, 1:].tolist()

    return answer


def torch_nn(size: str, vocab: int) -> Answer:
    model = plain(alike(size, vocab)[0]).eval()
    return lambda cell: model.greedy(cell.sources, BOS, EOS, LENGTH).tolist()


LOOP, GENERATE = "torch.nn.Transformer", "Hugging Face generate"
STATIC = f"{GENERATE}, static cache and compiled"
ENGINES = {
    "regard": regard, GENERATE: hugging_face, STATIC: partial(hugging_face, static=True), LOOP: torch_nn,
}  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
