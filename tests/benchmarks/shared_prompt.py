"""Run a prompt that many rows share once; its keys and values serve them all.

Prefix trees replaced it; it is their baseline. Invariant: gradients flow through the shared part as
if every row had run it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


def compute_hidden_states(model: Any, tokens: Tensor, shared: int) -> Tensor:
    """Return a decoder's last hidden states from position ``shared`` on, float [B, T − shared, H].

    ``tokens``: int64 [B, T], whose first ``shared`` columns are the same in every row; ``model``: a
    decoder of transformers without linear attention. With ``shared`` > 0 there are two forward
    calls: one of row 0 up to ``shared``, one of all rows after it.
    """
    if shared == 0:
        states: Tensor = model(input_ids=tokens, use_cache=False).last_hidden_state
        return states
    prefix = Cache([_RecordingLayer() for _ in model.layers])  # type: ignore[no-untyped-call]
    model(input_ids=tokens[:1, :shared], past_key_values=prefix, use_cache=True)
    rows = Cache([_PrefixedLayer(layer) for layer in prefix.layers])
    rest: Tensor = model(
        input_ids=tokens[:, shared:], past_key_values=rows, use_cache=True
    ).last_hidden_state
    return rest


class _RecordingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, kept as the forward pass gives them.

    A layer whose activations are computed again comes with them a second time: those are not kept,
    since gradients flow through the first.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep the first keys and values, [1, heads, shared, width], and return those given."""
        if not self.is_initialized:
            self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states


class _PrefixedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A prefix's keys and values of one layer, in front of every row's own.

    All of them, also with a sliding window: the mask goes by positions. Nothing is kept, so the
    layer may run again.
    """

    def __init__(self, prefix: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = prefix.keys, prefix.values, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of the prefix and the rows, each [B, heads, T, width]."""
        assert self.keys is not None
        assert self.values is not None
        # Expanded views: autograd adds up the gradients of all rows in the one prefix.
        shape = (len(key_states), -1, -1, -1)
        keys = torch.cat([self.keys.expand(shape), key_states], dim=-2)
        return keys, torch.cat([self.values.expand(shape), value_states], dim=-2)
