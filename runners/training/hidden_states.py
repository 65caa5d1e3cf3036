"""Run a policy's decoder on a micro-batch, which is one forward call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from runners.training.micro_batches import MicroBatch

ForwardScope = Callable[[], AbstractContextManager[object]]
"""Returns the context of a micro-batch's forward call."""


def compute_hidden_states(
    model: Any, batch: MicroBatch, scope: ForwardScope = nullcontext
) -> Tensor:
    """Return a decoder's last hidden states, float [B · T, H].

    ``model``: a decoder of transformers, for a prefix tree one that can run it.
    """
    given: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.tree is not None:
        # A mask of four dimensions is passed on as it is; without one, transformers would take
        # positions that go back for the beginnings of packed sequences, and build n² numbers.
        passed_on = torch.zeros(1, 1, 1, 1, device=batch.input_ids.device)
        given |= {"position_ids": batch.tree.depths[None], "attention_mask": passed_on}
        given |= {"tree": batch.tree}
    with scope():
        states: Tensor = model(**given).last_hidden_state
    return states.flatten(0, 1)
