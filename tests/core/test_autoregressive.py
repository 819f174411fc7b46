from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.head import Head
from regard.core.spans import SteadySpans
from regard.core.state import State


class Counter(Autoregressive):
    """The smallest system there is: its hidden state is the number of tokens read so far."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Head(1, 3)
        nn.init.ones_(self.head.weight)

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        return State(past=torch.zeros(rows or 0))

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        counts = state.past[:, None] + torch.arange(1, tokens.shape[1] + 1)
        return counts[..., None], State(past=counts[:, -1], length=state.length + tokens.shape[1])


def test_training_is_one_big_step() -> None:
    target = torch.ones(2, 4, dtype=torch.long)
    hidden, after = Counter()(None, None, target)
    assert hidden[..., 0].tolist() == [[1, 2, 3, 4]] * 2
    assert after.length == 4


def test_a_step_gives_the_logits_of_what_comes_next() -> None:
    model = Counter()
    logits, state = model.step(torch.ones(2, 3, dtype=torch.long), model.start(rows=2))
    assert logits.tolist() == [[3.0] * 3] * 2
    logits, _ = model.step(torch.ones(2, 1, dtype=torch.long), state)
    assert logits.tolist() == [[4.0] * 3] * 2


def test_a_system_must_define_two_verbs() -> None:
    class Nothing(Autoregressive):
        pass

    with pytest.raises(TypeError, match="Nothing must define start"):
        Nothing().start()
    with pytest.raises(TypeError, match="Nothing must define states"):
        Nothing().states(torch.ones(1, 1), State())


def test_spans_are_for_both_sides_of_who_can_leave_padding_out() -> None:
    class Able(Counter):
        unpads = True

    real = torch.tensor([[True, True], [True, False]])
    spans, tokens = SteadySpans(real, 4), torch.ones(2, 2, dtype=torch.long)
    for model, *given in (
        (Counter(), tokens, spans, tokens, None, spans),
        (Able(), tokens, spans, tokens, None, real),
        (Able(), tokens, real, tokens, None, spans),
        (Able(), tokens, spans, tokens, real, spans),
        (Able(), None, spans, tokens, None, spans),
    ):
        name = type(model).__name__
        with pytest.raises(ValueError, match=f"spans came, but {name} leaves no padding out here; give tensors"):
            model(*given)
    with pytest.raises(TypeError, match="Able must define unpadded"):
        Able()(tokens, spans, tokens, None, spans)
