"""Memory that a forward pass writes into, as numpy arrays and torch tensors at once.

A step of a small policy is hundreds of calls on a few thousand numbers each, and reading the keys
and values in between empties the processor's caches: a call then costs more than its arithmetic, an
elementwise one of torch about 15 µs, of numpy 5 µs. So numpy does what rounds alike in any library
(sums and products of two numbers, quotients, roots), torch the rest: matrix products, sums of many
numbers, exponentials. Neither allocates, nor makes views, in a decode step.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runners.engines.embedded.weights import ModelConfig

KEPT_TOKENS = 256
"""Buffers for up to this many tokens are kept, those for prefill made anew: they are large, and
their size is another each time.
"""
KEPT_SIZES = 16

FloatArray = NDArray[np.float32]


class Shared(NamedTuple):
    """The same float32 memory for both libraries."""

    array: FloatArray
    tensor: Tensor

    @classmethod
    def zeros(cls, *shape: int) -> Shared:
        """Return zeros; pages are first touched where something is written."""
        # numpy's, since torch's write them
        array = np.zeros(shape, np.float32)
        return cls(array, torch.from_numpy(array))

    def reshape(self, *shape: int) -> Shared:
        """Return a view of contiguous memory in another shape."""
        return Shared(self.array.reshape(shape), self.tensor.view(shape))


class Buffers:
    """Values of N tokens in the layer that is being computed; shapes as in ``model.py``."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        heads, groups, dim = config.heads, config.kv_heads, config.head_dim
        self.hidden = Shared.zeros(tokens, config.hidden_size)
        """The residual stream."""
        self.normed = Shared.zeros(tokens, config.hidden_size)
        self.sums = Shared.zeros(tokens, 1)
        self.qkv = Shared.zeros(tokens, (heads + 2 * groups) * dim)
        self.qkv_heads = self.qkv.array.reshape(tokens, heads + 2 * groups, dim)
        self.turned = Shared.zeros(tokens, heads + groups, dim)
        """Queries and keys after norm and rotation."""
        self.partner = np.zeros((tokens, heads + groups, dim), np.float32)
        self.head_sums = Shared.zeros(tokens, heads + groups, 1)
        self.mixed = Shared.zeros(tokens, heads * dim)
        """Attention."""
        self.router = Shared.zeros(tokens, config.experts)


class BufferPool:
    """The buffers of one model, by number of tokens; valid until they are asked for again."""

    def __init__(self, config: ModelConfig) -> None:
        # not a method: a pool that refers to itself would outlive its model until a full collection
        self._make = partial(Buffers, config)
        self._kept = lru_cache(KEPT_SIZES)(self._make)

    def __call__(self, tokens: int) -> Buffers:
        """Return buffers with any content."""
        return self._kept(tokens) if tokens <= KEPT_TOKENS else self._make(tokens)
