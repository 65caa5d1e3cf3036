"""A prompt that many rows share is run once; its keys and values serve them all.

Rollouts of a group share their prompt, and all rollouts of an agent its tools and system prompt.
Gradients flow through the shared part as if every row had run it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

Around = Callable[[slice, slice], AbstractContextManager[object]]
"""What encloses a forward call on some rows and positions of the batch."""


def plain(_rows: slice, _positions: slice) -> AbstractContextManager[object]:
    """Enclose nothing."""
    return nullcontext()


def hidden_states(model: Any, tokens: Tensor, shared: int, around: Around = plain) -> Tensor:
    """Return a decoder's last hidden states from position ``shared`` on, float [B, T - shared, H].

    ``tokens``: int64 [B, T], the first ``shared`` of every row the same; ``model``: a decoder of
    transformers that takes a DynamicCache.
    """
    if shared == 0:
        with around(slice(None), slice(None)):
            states: Tensor = model(input_ids=tokens, use_cache=False).last_hidden_state
        return states
    cache = DynamicCache(config=model.config)
    with around(slice(0, 1), slice(0, shared)):
        model(input_ids=tokens[:1, :shared], past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        layer.keys = layer.keys.expand(len(tokens), -1, -1, -1)
        layer.values = layer.values.expand(len(tokens), -1, -1, -1)
    with around(slice(None), slice(shared, None)):
        rest: Tensor = model(
            input_ids=tokens[:, shared:], past_key_values=cache, use_cache=True
        ).last_hidden_state
    return rest
