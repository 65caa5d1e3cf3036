"""Compute again in the backward pass what the forward pass would otherwise keep.

Activation checkpointing (Chen et al. 2016, arXiv 1604.06174) of the decoder's layers, and logits
in chunks. Invariant: the operations and their numbers are the same, and so are the gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_CHUNK = 1024
"""Tokens whose logits exist at once: 1024 of a vocabulary of 151,936 are 0.6 GiB in float32."""


def checkpoint_layers(policy: Any) -> None:
    """Let a policy of transformers keep the inputs of its layers only, while it trains.

    Its layers then refuse a cache of keys and values, so micro-batches must share no prefix.
    """
    # transformers 5.12 has the older name only, which 5.23 warns about.
    enable = getattr(policy, "activation_checkpointing_enable", None)
    (enable or policy.gradient_checkpointing_enable)({"use_reentrant": False})


def compute_chosen_logprobs(
    head: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    chunked: bool,
    entropy: bool = False,
) -> Tensor:
    """Return ``log softmax(head(hidden) / temperature)`` at ``targets``, float32 [n, 1]; with
    ``entropy`` [n, 2], whose second column is the entropy of the softmax in nats.

    ``hidden``: float [n, H]; ``targets``: int64 [n]. ``chunked``: keep no logits for the backward
    pass and compute LOGITS_CHUNK rows at a time; rows do not depend on each other.
    """

    def choose(rows: Tensor, chosen: Tensor) -> Tensor:
        logits = head(rows).float() / temperature
        total = logits.logsumexp(dim=1)
        logprobs: Tensor = logits.gather(1, chosen[:, None])[:, 0] - total
        if not entropy:
            return logprobs[:, None]
        mean = (logits * (logits - total[:, None]).exp()).sum(dim=1)
        return torch.stack([logprobs, total - mean], dim=1)

    if not chunked:
        return choose(hidden, targets)
    starts = range(0, len(targets), LOGITS_CHUNK)
    chunks = [slice(start, start + LOGITS_CHUNK) for start in starts]
    parts = [checkpoint(choose, hidden[c], targets[c], use_reentrant=False) for c in chunks]
    return torch.cat(parts)
