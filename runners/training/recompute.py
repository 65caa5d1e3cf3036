"""Compute again in the backward pass what the forward pass would otherwise keep.

Activation checkpointing (Chen et al. 2016, arXiv 1604.06174) of the decoder's layers, and logits
in chunks. Invariant: the operations and their numbers are the same, and so are the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runners.training.chosen_logprobs import choose_logprobs
from runners.training.policy import find_decoder

Entropy = Literal["none", "value", "gradient"]
"""Entropies beside the logprobs: not computed, without or with a gradient."""
LOGITS_CHUNK = 1024
"""Tokens whose logits exist at once: 1024 of a vocabulary of 151,936 are 0.6 GiB in float32."""


Contexts = Callable[[], tuple[AbstractContextManager[object], AbstractContextManager[object]]]
"""Returns the context of a layer's forward pass, and that in which it is computed again."""


def no_contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return contexts that do nothing."""
    return nullcontext(), nullcontext()


def checkpoint_layers(policy: Any, contexts: Contexts = no_contexts) -> None:
    """Let the decoder of a policy keep the inputs of its layers only.

    Not transformers' own way: there the contexts have no place. ``contexts`` is called in every
    forward pass of a layer that will be computed again.
    """
    for layer in find_decoder(policy).layers:
        layer.forward = _checkpoint(layer.forward, contexts)


def _checkpoint(forward: Callable[..., Any], contexts: Contexts) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return run


def compute_chosen_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    rows: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    chunked: bool,
    entropy: Entropy = "none",
) -> Tensor:
    """Return ``log softmax(head(hidden[rows]) / temperature)`` at ``targets``, float32 [n, 1]; with
    ``entropy`` [n, 2], whose second column is the entropy of the softmax in nats.

    ``head``: a linear layer, which does not need its output again: that is overwritten, which no
    check of autograd's finds in what is recomputed. ``hidden``: float [m, H], each of which goes
    through it once; ``rows``, ``targets``: int64 [n]. ``chunked``: keep no logits for the backward
    pass and compute LOGITS_CHUNK of them at a time; rows of ``hidden`` do not depend on each other.
    """

    def choose(states: Tensor, own: Tensor, chosen: Tensor) -> Tensor:
        logits = head(states).float()
        if entropy != "gradient":
            measures = entropy == "value"
            found = choose_logprobs(logits, own, chosen, temperature, entropies=measures)
            return torch.stack([found[0], found[1][own]] if measures else [found[0]], dim=1)
        logits = logits / temperature
        total = logits.logsumexp(dim=1)
        # index_select: its gradient is a sum in order, that of logits[own, chosen] is not
        places = own * logits.shape[1] + chosen
        logprobs = logits.flatten().index_select(0, places) - total.index_select(0, own)
        entropies = _compute_entropy(logits, total).index_select(0, own)
        return torch.stack([logprobs, entropies], dim=1)

    if not chunked:
        return choose(hidden, rows, targets)
    order = rows.argsort(stable=True)
    starts = torch.arange(0, len(hidden) + LOGITS_CHUNK, LOGITS_CHUNK, device=rows.device)
    bounds = torch.searchsorted(rows[order], starts).tolist()
    parts = []
    for start, (first, last) in zip(starts.tolist(), pairwise(bounds), strict=False):
        of = order[first:last]
        states = hidden[start : start + LOGITS_CHUNK]
        parts.append(checkpoint(choose, states, rows[of] - start, targets[of], use_reentrant=False))
    return torch.cat(parts).index_select(0, order.argsort())


def _compute_entropy(logits: Tensor, total: Tensor) -> Tensor:
    """Return the entropy of each row's softmax in nats, float32 [n]; ``total``: its logsumexp."""
    return total - (logits * (logits - total[:, None]).exp()).sum(dim=1)
