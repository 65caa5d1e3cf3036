"""Names that the other districts may import."""

from __future__ import annotations

from runners.training.routing.check import find_routing_fault
from runners.training.routing.evidence import CERTAINTY, pool_rows
from runners.training.routing.shape import read_routing_shape

__all__ = [
    "CERTAINTY",
    "find_routing_fault",
    "pool_rows",
    "read_routing_shape",
]
