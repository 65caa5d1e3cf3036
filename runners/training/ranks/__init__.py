"""Names that the other districts may import."""

from __future__ import annotations

from runners.training.ranks.client import Trainer, start_ranks
from runners.training.ranks.settings import RankSettings

__all__ = [
    "RankSettings",
    "Trainer",
    "start_ranks",
]
