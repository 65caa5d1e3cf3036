"""Sample one token per row: temperature, top-p, top-k, or greedy.

Invariant: the random number of a token depends only on its row's seed and position, so a seeded
request samples the same tokens in any batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runners.records.record import LogprobArray


@dataclass(frozen=True, slots=True)
class BatchSampling:
    """Sampling settings of M rows; each array has shape [M]."""

    temperature: NDArray[np.float32]
    """0 is greedy."""
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int64]
    """At least 1; the size of the vocabulary or more keeps everything."""
    seed: NDArray[np.uint64]
    position: NDArray[np.int64]
    """Position of the sampled token in its whole sequence."""


def sample(logits: Tensor, settings: BatchSampling) -> tuple[NDArray[np.int64], LogprobArray]:
    """Sample one token per row of ``logits``, float32 [M, V].

    Returns ids, int64 [M], and their logprobs, float32 [M]: ``log_softmax(logits / temperature)``
    before top-p and top-k cut the tail, as SGLang reports them (temperature 1 for greedy rows).
    Sampling inverts the distribution function: the first token whose running sum of probabilities
    exceeds u · total, with u uniform in [0, 1).
    """
    greedy = settings.temperature == 0
    if (settings.temperature != 1).any():
        scale = np.where(greedy, np.float32(1), settings.temperature)
        logits = logits / torch.from_numpy(scale)[:, None]
    logprobs = logits.log_softmax(-1)
    if greedy.all():
        chosen = logprobs.argmax(-1)
    else:
        # not logprobs.exp(): its last elements, of the last row, come from another implementation
        weights = logits.softmax(-1)
        if (settings.top_p < 1).any() or (settings.top_k < logits.shape[1]).any():
            weights = _truncate(
                weights, torch.from_numpy(settings.top_p), torch.from_numpy(settings.top_k)
            )
        # float64: the error of a float32 running sum would be a bias over a large vocabulary
        edges = weights.cumsum(-1, dtype=torch.float64)
        target = torch.from_numpy(hash_uniform(settings.seed, settings.position)).mul_(edges[:, -1])
        chosen = torch.searchsorted(edges, target[:, None], right=True)[:, 0]
        # u · total may round up to the total itself, beyond the last token
        chosen.clamp_(max=logits.shape[1] - 1)
        if greedy.any():
            chosen = torch.where(torch.from_numpy(greedy), logprobs.argmax(-1), chosen)
    picked = logprobs.gather(1, chosen[:, None])[:, 0]
    return chosen.numpy(), picked.numpy()


def hash_uniform(seed: NDArray[np.uint64], position: NDArray[np.int64]) -> NDArray[np.float64]:
    """Hash (seed, position) pairs, both [M], to float64 [M] in [0, 1).

    Two rounds of the finaliser of splitmix64 (Steele et al., OOPSLA 2014), of which the upper 53
    bits are used. uint64 arithmetic wraps around on purpose.
    """
    state = _mix(seed + np.uint64(0x9E3779B97F4A7C15))
    state = _mix(state ^ (position.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _truncate(weights: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Return ``weights`` [M, V] with zeros outside the top-k tokens and the nucleus.

    The nucleus is the smallest set of most probable tokens whose mass reaches top_p (Holtzman et
    al., arXiv 1904.09751): a token stays if the mass before it is at most top_p, so the most
    probable one always does. The rest is not renormalised: the caller scales u by the sum.
    """
    ordered, order = weights.sort(stable=True, dim=-1, descending=True)
    before = ordered.cumsum(-1).sub_(ordered)
    rank = torch.arange(weights.shape[1])
    # a row of top_p 1 keeps its tail, although the mass before it may round to more than 1
    cut = (before > top_p.masked_fill(top_p == 1, math.inf)[:, None]) | (rank >= top_k[:, None])
    return torch.zeros_like(weights).scatter_(1, order, ordered.masked_fill_(cut, 0.0))
