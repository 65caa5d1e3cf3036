"""The distance from a reference policy, estimated from sampled tokens.

Schulman 2020, "Approximating KL Divergence".
"""

from __future__ import annotations

import torch
from torch import Tensor

from conf.sections.training import KlConfig


def estimate_kl(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Return an estimate of ``KL(policy ‖ reference)`` for each sampled token, float32 [n].

    With ``d = logprob − reference``: k1 is d, k2 is d²/2, k3 is ``exp(−d) − 1 + d``. k1 and k3 are
    unbiased; the gradient of k2 is that of the divergence, to the order of one token.
    """
    distance = logprobs - reference
    match estimator:
        case "k1":
            return distance
        case "k2":
            return distance.square() / 2
    return (-distance).exp() - 1 + distance


def sum_to_end(values: Tensor, rows: Tensor) -> Tensor:
    """Return for each token the sum of the values from it to the end of its row, float32 [n].

    ``rows``: int64 [n], ascending.
    """
    if not len(rows):
        return values
    until = values.cumsum(0)
    last = torch.searchsorted(rows, rows, right=True) - 1
    return until[last] - until + values


def penalize(
    advantages: Tensor, rollout_logprobs: Tensor, reference: Tensor, rows: Tensor, kl: KlConfig
) -> Tensor:
    """Return advantages of which the weighted divergence from each token on is taken off.

    That is the policy gradient of ``E[A − weight · KL]`` over a segment; no gradient.
    """
    distance = estimate_kl(rollout_logprobs, reference, kl.estimator).detach()
    return advantages - kl.weight * sum_to_end(distance, rows)
