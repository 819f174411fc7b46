"""How much arithmetic training is, counted by PyTorch on one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.tasks import Task
from regard.training.state import undisturbed


def flops_per_token(model: nn.Module, task: Task, batch: Any, carry: Any) -> float:
    """Forward and backward, over the batch's tokens; afterwards the model and the random generators are as before."""
    from torch.utils.flop_counter import FlopCounterMode  # brings Triton along, where there is one

    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with undisturbed(), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        torch.autograd.backward(task.loss(model, batch, carry).total)
    model.zero_grad()
    for buffer, before in buffers:
        buffer.copy_(before)
    return float(counter.get_total_flops() / batch.tokens)


# Formulas for the kernels of which PyTorch counts nothing, or not all. They are given shapes in place of tensors.

Shape = Sequence[int]


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Two products: scores from queries and keys, contexts from weights and values."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(grad: Any, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Five products: the scores once more, and the gradients of queries, keys, values and weights."""
    return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _recurrent(x: Shape, weights: Sequence[Shape], each: int, *_: Any, **__: Any) -> int:
    """Every token meets W and U once, the first two of the `each` weights that a layer has in one direction.

    Autocast hands weights over flat, so that a matrix is known by its place alone. A packed x holds no padding.
    """
    matrices = [*weights[::each], *weights[1::each]]
    return 2 * math.prod(x[:-1]) * sum(math.prod(matrix) for matrix in matrices)


def _recurrent_backward(x: Shape, weights: Sequence[Shape], each: int, *rest: Any, **__: Any) -> int:
    """As much for the gradients of inputs and states, which are always made, and again for the weights' if wanted."""
    *_, (_, _, _, of_weights) = rest
    return (1 + of_weights) * _recurrent(x, weights, each)


def _lstm_layer(x: Shape, w: Shape, u: Shape, *_: Any, **__: Any) -> int:
    """One layer in one direction."""
    return _recurrent(x, (w, u), 2)


def _lstm_layer_backward(x: Shape, w: Shape, u: Shape, *_: Any, **__: Any) -> int:
    """All gradients, wanted or not."""
    return 2 * _recurrent(x, (w, u), 2)


def _added_product(result: Shape, a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    """A product that is added to what is there already."""
    return 2 * math.prod(a) * b[-1]


FORMULAS = {
    torch.ops.aten.addmm_: _added_product,  # causal convolutions and the head on a CPU
    torch.ops.aten.addmm: _added_product,  # PyTorch's own fails for a sum in another precision, the head's on a GPU
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten._cudnn_rnn: _recurrent,  # RNN, GRU and LSTM on a GPU, all layers in one call
    torch.ops.aten._cudnn_rnn_backward: _recurrent_backward,
    torch.ops.aten.mkldnn_rnn_layer: _lstm_layer,  # on a CPU the others, and packed LSTMs, are made of plain products
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_layer_backward,
}
