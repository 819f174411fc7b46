"""Norms: numbers shifted to mean 0 and scaled to variance 1, then γ times them, plus β. What they differ in is whose
mean it is. All of them take (..., dim), where dim is the features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.errors import ConfigError

Norm = Callable[[int], nn.Module]  # made for a width


class LayerNorm(nn.LayerNorm):
    """γ ⊙ (x − μ) / √(σ² + ε) + β, with μ and σ² over the features of one position (Ba et al. 2016).

    The same in training and evaluation. The paper has no ε: that is epsilon = 0, where equal features have no result.
    """

    def __init__(self, dim: int, epsilon: float = 1e-5) -> None:
        super().__init__(dim, epsilon)


class UnbiasedLayerNorm(nn.Module):
    """γ ⊙ (x − μ) / (s + ε) + β, with s² = Σ(x − μ)² / (dim − 1), as in The Annotated Transformer."""

    def __init__(self, dim: int, epsilon: float = 1e-6) -> None:
        if dim == 1:
            raise ConfigError("norm 'layer_unbiased' divides by dim − 1, but dim=1; write 'layer', or a larger dim")
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.std_mean(x, -1, keepdim=True)
        return self.weight * (x - mean) / (spread + self.epsilon) + self.bias


class BatchNorm(nn.BatchNorm1d):
    """γ ⊙ (x − μ) / √(σ² + ε) + β, with μ and σ² of each feature over all positions (Ioffe and Szegedy 2015).

    In evaluation μ and σ² are running averages, so it is one affine map, the same for every position. In training a
    position depends on all others in its batch: on its neighbours, on padding, and in a decoder on words to come.
    """

    def __init__(self, dim: int, epsilon: float = 1e-5) -> None:
        super().__init__(dim, epsilon)

    def forward(self, input: Tensor) -> Tensor:
        positions = input.flatten(0, -2)  # (B, T, dim) -> (B·T, dim)
        if self.training and len(positions) == 1:
            raise ConfigError("norm 'batch' averages over positions, but one came; write 'layer', or larger batches")
        return super().forward(positions).view(input.shape)


NORMS: dict[str, Norm] = {
    "layer": LayerNorm,
    "layer_unbiased": UnbiasedLayerNorm,
    "batch": BatchNorm,
    "none": nn.Identity,
}
