"""Names that the other districts may import."""

from __future__ import annotations

from runners.training.ranks.client import Trainer, check_devices, start_trainer
from runners.training.ranks.settings import RankSettings

__all__ = [
    "RankSettings",
    "Trainer",
    "check_devices",
    "start_trainer",
]
