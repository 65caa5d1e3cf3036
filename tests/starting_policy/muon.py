"""Muon for matrices, AdamW for the rest.

Muon: Keller Jordan, 2024 (https://kellerjordan.github.io/posts/muon): a step of momentum whose
singular values are made nearly equal. With it the policy learned to copy names within 300 steps of
an exercise; with AdamW, at the rates tried, it did not. torch's own Muon takes 2-D parameters only,
and a mixture of experts stacks its matrices in 3-D ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan's quintic: steep at zero; singular values end within [0.7, 1.2]."""
_NOT_HIDDEN = ("embed_tokens.weight", "gate.weight")


class Muon:
    """Optimizer of a whole model; changed only by ``step``."""

    def __init__(self, model: nn.Module, *, matrix_rate: float, other_rate: float) -> None:
        """Optimize hidden matrices with Muon; embeddings, routers and norms with AdamW.

        ``matrix_rate``, ``other_rate``: their learning rates at scale 1.
        """
        self._matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in model.named_parameters():
            hidden = parameter.ndim >= 2 and not name.endswith(_NOT_HIDDEN)
            (self._matrices if hidden else others).append(parameter)
        self._momenta = [torch.zeros_like(matrix) for matrix in self._matrices]
        self._matrix_rate, self._other_rate = matrix_rate, other_rate
        self._adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, foreach=True)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Apply the gradients with both learning rates times ``scale``, and clear them.

        For a matrix W [..., m, n] with gradient G: ``M ← 0.95 M + 0.05 G``, then
        ``W ← W − rate · √max(1, m/n) · orthogonalize(0.05 G + 0.95 M)``: Nesterov momentum, and a
        factor that gives tall matrices the same root-mean-square update.
        """
        for group in self._adam.param_groups:
            group["lr"] = self._other_rate * scale
        self._adam.step()
        self._adam.zero_grad()
        for matrix, momentum in zip(self._matrices, self._momenta, strict=True):
            if matrix.grad is None:
                continue
            momentum.lerp_(matrix.grad, 0.05)
            update = orthogonalize(matrix.grad.lerp(momentum, 0.95))
            taller = max(1.0, matrix.size(-2) / matrix.size(-1))
            matrix.add_(update, alpha=-self._matrix_rate * scale * taller**0.5)
            matrix.grad = None


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return nearly the closest (semi-)orthogonal matrix of each, float32 [..., m, n].

    Five Newton–Schulz iterations ``X ← aX + (bA + cA²)X`` with ``A = XXᵀ``, on the side with fewer
    rows, where the Gram matrix is smallest. With X = UΣVᵀ this moves Σ towards 1.
    """
    a, b, c = _NEWTON_SCHULZ
    wide = matrices.size(-2) <= matrices.size(-1)
    result: Tensor = matrices if wide else matrices.mT
    result = result / (result.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = result @ result.mT
        result = a * result + (b * gram + c * gram @ gram) @ result
    return result if wide else result.mT
