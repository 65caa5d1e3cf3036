"""Logprobs of chosen tokens from the logits of a vocabulary, in one buffer.

Autograd would keep the logits and take six more tensors of their size, which a tiny policy notices:
its logits are ten times its hidden states. Here probabilities replace the logits that they are
computed from, and gradients replace the probabilities, a few rows at a time, which stay in the
processor's cache. Invariant: every number comes of the operations that autograd would use, in their
order, so its bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CACHED = 2**18
"""Logits that are worked on at a time on a CPU: 1 MiB, which a core's own cache holds."""
LEAST_ROWS = 16
"""Rows of a large vocabulary, so that calls cost little beside the work."""
GPU_ROWS = 1024
"""Rows at a time on a GPU: beside the buffer two tensors of so many rows exist."""


def choose_logprobs(
    logits: Tensor, rows: Tensor, targets: Tensor, temperature: float, *, entropies: bool
) -> tuple[Tensor, Tensor]:
    """Return ``log softmax(logits / temperature)[rows, targets]``, float32 [n], and the entropy of
    each row's softmax in nats, float32 [m], without a gradient; empty without ``entropies``.

    ``logits``: float32 [m, V], overwritten; ``rows``, ``targets``: int64 [n].
    """
    logprobs, found, _ = _ChosenLogprobs.apply(logits, rows, targets, temperature, entropies)  # type: ignore[no-untyped-call]
    return logprobs, found


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        rows: Tensor,
        targets: Tensor,
        temperature: float,
        entropies: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        places = rows * logits.shape[1] + targets
        chosen = logits.flatten().index_select(0, places) / temperature
        total = logits.new_empty(len(logits))
        found = logits.new_empty(len(logits) if entropies else 0)
        for part in _cut(logits):
            scaled = logits[part] / temperature
            torch.logsumexp(scaled, dim=1, out=total[part])
            if not entropies and not ctx.needs_input_grad[0]:
                continue
            probabilities = torch.sub(scaled, total[part, None], out=logits[part]).exp_()
            if entropies:
                found[part] = total[part] - scaled.mul_(probabilities).sum(dim=1)
        ctx.mark_dirty(logits)
        ctx.mark_non_differentiable(found)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, rows, places)
        ctx.temperature = temperature
        return chosen - total.index_select(0, rows), found, logits

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        probabilities, rows, places = ctx.saved_tensors
        given = gradients[0]
        of_total = torch.zeros_like(probabilities[:, 0]).index_add_(0, rows, -given)
        # Several samples may have one target at one place: added up in their order first.
        once, which = torch.unique(places, return_inverse=True)
        of_chosen = torch.zeros_like(given[: len(once)]).index_add_(0, which, given)
        for part in _cut(probabilities):
            probabilities[part].mul_(of_total[part, None])
        flat = probabilities.view(-1)
        flat[once] = flat.index_select(0, once) + of_chosen
        for part in _cut(probabilities):
            probabilities[part].div_(ctx.temperature)
        return probabilities, None, None, None, None


def _cut(logits: Tensor) -> Iterator[slice]:
    """Yield the rows that are worked on at a time."""
    step = GPU_ROWS
    if logits.device.type == "cpu":
        step = max(LEAST_ROWS, CACHED // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, start + step)
