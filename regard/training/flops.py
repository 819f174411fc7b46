"""How much arithmetic training is, counted by PyTorch on one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.tasks import Task
from regard.training.state import undisturbed


def flops_per_token(model: nn.Module, task: Task, batch: Any, carry: Any) -> float:
    """Forward and backward, over the batch's tokens; afterwards the model and the random generators are as before."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with undisturbed(), FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        torch.autograd.backward(task.loss(model, batch, carry).total)
    model.zero_grad()
    for buffer, before in buffers:
        buffer.copy_(before)
    return float(counter.get_total_flops() / batch.tokens)


def _forward(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Two products: scores from queries and keys, contexts from weights and values."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _backward(grad: Any, query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Five products: the scores once more, and the gradients of queries, keys, values and weights."""
    return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


CPU_ATTENTION = {  # PyTorch knows what its fused attention costs on a GPU, and counts nothing for the CPU's
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}
