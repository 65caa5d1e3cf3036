"""Compute in float64 what code of transformers and of ours computes in float32 on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def float64() -> Iterator[None]:
    """Return a context in which torch's names of float32 mean float64: norms, routers, positions
    and logits of a policy in float64 have its precision, also where layers are computed again.
    """
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield
