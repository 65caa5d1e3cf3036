"""Run a prompt that many rows share once; its keys and values serve them all.

Rollouts of a group share their prompt, and all rollouts of an agent share its tools and system
prompt. Invariant: gradients flow through the shared part as if every row had run it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

ForwardScope = Callable[[slice, slice], AbstractContextManager[object]]
"""Returns the context of a forward call on some rows and positions of the batch."""


def no_scope(_rows: slice, _positions: slice) -> AbstractContextManager[object]:
    """Return a context that does nothing."""
    return nullcontext()


def compute_hidden_states(
    model: Any, tokens: Tensor, shared: int, scope: ForwardScope = no_scope
) -> Tensor:
    """Return a decoder's last hidden states from position ``shared`` on, float [B, T − shared, H].

    ``tokens``: int64 [B, T], whose first ``shared`` columns are the same in every row; ``model``: a
    decoder of transformers that takes a DynamicCache. With ``shared`` > 0 there are two forward
    calls: one of row 0 up to ``shared``, one of all rows after it.
    """
    if shared == 0:
        with scope(slice(None), slice(None)):
            states: Tensor = model(input_ids=tokens, use_cache=False).last_hidden_state
        return states
    cache = DynamicCache(config=model.config)
    with scope(slice(0, 1), slice(0, shared)):
        model(input_ids=tokens[:1, :shared], past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        # A view, not a copy: autograd adds up the gradients of all rows in the one prefix.
        layer.keys = layer.keys.expand(len(tokens), -1, -1, -1)
        layer.values = layer.values.expand(len(tokens), -1, -1, -1)
    with scope(slice(None), slice(shared, None)):
        rest: Tensor = model(
            input_ids=tokens[:, shared:], past_key_values=cache, use_cache=True
        ).last_hidden_state
    return rest
