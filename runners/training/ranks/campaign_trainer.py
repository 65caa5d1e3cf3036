"""A local trainer with the commands of a campaign, in its process or as one of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runners.records.checkpoints import Checkpoint
from runners.training import checkpoint
from runners.training.local import LocalTrainer
from runners.training.ranks.settings import RankSettings
from runners.training.sample import Sample
from runners.training.supervised.step import train_on_examples


class CampaignTrainer(LocalTrainer):
    """Trains, and saves itself; one call at a time, each of them blocks."""

    def fit(self, examples: Sequence[Sample]) -> dict[str, Any]:
        """Train on examples and return the metrics, see ``train_on_examples``."""
        return train_on_examples(self, examples)

    def save(self, root: Path, **options: Any) -> Checkpoint:
        """Write a checkpoint, see ``checkpoint.save``."""
        return checkpoint.save(self, root, **options)

    def save_adapters(self, directory: Path) -> None:
        """Write the adapters that are trained; raises OSError."""
        assert self.adapters is not None
        self.adapters.save(directory)


def make_trainer(settings: RankSettings) -> CampaignTrainer:
    """Load a trainer, or this process's part of one; raises TrainingError and CheckpointError."""
    trainer = CampaignTrainer(
        settings.trainer,
        weights=settings.weights,
        temperature=settings.temperature,
        seed=settings.seed,
        routing=settings.routing,
        merges_adapters=settings.merges_adapters,
    )
    if settings.checkpoint is not None:
        saved = Checkpoint(settings.checkpoint, settings.step)
        checkpoint.restore(trainer, saved)
    return trainer
