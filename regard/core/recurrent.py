"""Recurrent layers: a state that is carried from word to word.

    rnn    h' = tanh(Wx + Uh)
    gru    r, z = σ(Wx + Uh)      n = tanh(Wx + r ⊙ (Uh + b))      h' = (1 - z) ⊙ n + z ⊙ h
    lstm   i, f, o = σ(Wx + Uh)   g = tanh(Wx + Uh)   c' = f ⊙ c + i ⊙ g   h' = o ⊙ tanh c'

Whole sequences run in PyTorch's fused kernels (but not while a step is recorded: `read`). A decoder that hears its own
attention must go word by word; it takes `advance`, the same cell with the same weights, for which the products Wx are
made beforehand for all words at once.

The GRU multiplies by r after the product with U, as PyTorch and cuDNN do; Cho et al. (2014) multiply before it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
GATES = {"rnn": 1, "gru": 3, "lstm": 4}

Past = tuple[Tensor, ...]  # (B, layers · directions, dim): (h,), or (h, c) of an LSTM


class Recurrent(nn.Module):
    """Layers of cells, one above the other, read in one direction or in both."""

    def __init__(
        self,
        cell: str,
        width: int,
        dim: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        forget: float = 1.0,
    ) -> None:
        super().__init__()
        self.cell, self.dim, self.layers = cell, dim, layers
        self.directions = 2 if bidirectional else 1
        between = dropout if layers > 1 else 0.0  # dropout is between layers: above one there is nothing
        self.body = CELLS[cell](width, dim, layers, batch_first=True, bidirectional=bidirectional, dropout=between)
        _initialise_cells(self.body, forget)

    def forward(self, x: Tensor, past: Past | None = None, real: Tensor | None = None) -> tuple[Tensor, Past]:
        """(B, T, width) -> (B, T, dim · directions), and the state after the last real word of each row.

        `real` (B, T) keeps padding out of the states; padded outputs are zero.
        """
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return self.read(x, past, real)
        before = None if past is None else tuple(t.transpose(0, 1).to(x.dtype).contiguous() for t in past)
        hx = before if before is None or self.cell == "lstm" else before[0]
        if real is None:
            y, after = self.body(x, hx)
        else:
            packed = pack_padded_sequence(x, real.sum(1).cpu(), batch_first=True, enforce_sorted=False)
            y, after = self.body(packed, hx)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        return y, tuple(t.transpose(0, 1) for t in (after if self.cell == "lstm" else (after,)))

    def empty(self, rows: int, like: Tensor) -> Past:
        """The state before anything was read."""
        zeros = like.new_zeros(rows, self.layers * self.directions, self.dim)
        return (zeros, zeros) if self.cell == "lstm" else (zeros,)

    # ---- word by word

    def read(self, x: Tensor, past: Past | None = None, real: Tensor | None = None) -> tuple[Tensor, Past]:
        """The same as forward, without cuDNN, which has the host tell the lengths of rows: what a recording wants. A
        state stays as it is while there are no real words."""
        states: list[Past] = []
        for layer in range(self.layers):
            if layer:
                x = F.dropout(x, self.body.dropout, self.training)
            ways = []
            for way in range(self.directions):
                place = len(states)
                first = None if past is None else tuple(t[:, place] for t in past)
                y, state = self._read(x, layer, way == 1, first, real)
                ways.append(y)
                states.append(state)
            x = torch.cat(ways, -1)
        return x, tuple(torch.stack(tensors, 1) for tensors in zip(*states, strict=True))

    def _read(
        self, x: Tensor, layer: int, backwards: bool, past: Past | None, real: Tensor | None
    ) -> tuple[Tensor, Past]:
        """One layer in one direction."""
        weight, feedback, bias, feedback_bias = self._weights(layer, backwards)
        gates = F.linear(x, weight, bias)
        state = tuple(t[:, 0] for t in self.empty(len(x), gates)) if past is None else tuple(t.to(gates) for t in past)
        words = list(enumerate(gates.unbind(1)))
        outputs = [state[0]] * len(words)
        for place, own in reversed(words) if backwards else words:
            after = STEPS[self.cell](own, F.linear(state[0], feedback, feedback_bias), state)
            if real is not None:
                after = tuple(n.where(real[:, place, None], o) for n, o in zip(after, state, strict=True))
            outputs[place], state = after[0], after
        y = torch.stack(outputs, 1)
        return y if real is None else y * real[..., None], state

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What x, the first of the lowest layer's inputs, adds to its gates, Wx + b, (…, gates · dim); and the matrix
        of the other inputs, cut out once: the gradient of every cut is as large as the whole."""
        weight, _, bias, _ = self._weights(0)
        own, other = weight.split([x.shape[-1], weight.shape[-1] - x.shape[-1]], 1)
        return F.linear(x, own, bias), other.T

    def advance(self, gates: Tensor, past: Past) -> tuple[Tensor, Past]:
        """One word: the lowest layer's gates (B, gates · dim), the state -> the topmost output (B, dim), the state."""
        before = list(zip(*(t.unbind(1) for t in past), strict=True))
        states: list[Past] = []
        for layer in range(self.layers):
            weight, feedback, bias, feedback_bias = self._weights(layer)
            if layer:
                gates = F.linear(F.dropout(states[-1][0], self.body.dropout, self.training), weight, bias)
            states.append(STEPS[self.cell](gates, F.linear(before[layer][0], feedback, feedback_bias), before[layer]))
        return states[-1][0], tuple(torch.stack(tensors, 1) for tensors in zip(*states, strict=True))

    def _weights(self, layer: int, backwards: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W, U and their biases, as PyTorch names them."""
        held, way = self.body._parameters, "_reverse" if backwards else ""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(held[f"{name}_l{layer}{way}"] for name in names)


def _rnn(gates: Tensor, fed_back: Tensor, past: Past) -> Past:
    return ((gates + fed_back).tanh(),)


def _gru(gates: Tensor, fed_back: Tensor, past: Past) -> Past:
    (h,) = past
    if gates.is_cuda:
        return (torch.ops.aten._thnn_fused_gru_cell(gates, fed_back, h)[0],)
    wide = h.shape[-1]
    r, z = (gates[:, : 2 * wide] + fed_back[:, : 2 * wide]).sigmoid().chunk(2, -1)
    n = torch.addcmul(gates[:, 2 * wide :], r, fed_back[:, 2 * wide :]).tanh()
    return (torch.lerp(n, h, z),)


def _lstm(gates: Tensor, fed_back: Tensor, past: Past) -> Past:
    _, c = past
    if gates.is_cuda:
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(gates, fed_back, c)
        return h, c
    i, f, g, o = (gates + fed_back).chunk(4, -1)
    c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
    return o.sigmoid() * c.tanh(), c


STEPS = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


def _initialise_cells(part: nn.RNNBase, forget: float) -> None:
    """Orthogonal where the state feeds back, so that it neither fades nor explodes; an LSTM begins by remembering."""
    for name, p in part.named_parameters():
        if name.startswith("weight"):
            for gate in p.data.chunk(GATES[part.mode.split("_")[0].lower()]):
                nn.init.orthogonal_(gate) if name.startswith("weight_hh") else nn.init.xavier_uniform_(gate)
        else:
            nn.init.zeros_(p)
        if name.startswith("bias_ih") and isinstance(part, nn.LSTM):
            p.data[part.hidden_size : 2 * part.hidden_size] = forget  # of the gate; bias_hh adds nothing to it


def initialise(part: nn.Module) -> None:
    """What stands around the cells of a model: its other matrices and its word vectors."""
    if isinstance(part, nn.Linear):
        nn.init.xavier_uniform_(part.weight)
        if part.bias is not None:
            nn.init.zeros_(part.bias)
    elif isinstance(part, nn.Embedding):
        nn.init.normal_(part.weight, std=0.1)
