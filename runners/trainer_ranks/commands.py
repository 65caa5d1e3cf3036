"""The commands that a campaign gives to its trainer, here or in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runners.training import checkpoint
from runners.training.sample import Sample
from runners.trajectory.routing import TokenAgreement

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from runners.training.local import LocalTrainer
    from runners.training.token_weights import Rollout


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """The outcome of a step."""

    metrics: dict[str, Any]
    refused: Mapping[str, str]
    """Rollouts that were masked for their routing, with the reason."""
    failed_updates: Sequence[str]
    """Updates that were left out because a plug-in's loss failed: reasons."""
    agreements: Sequence[TokenAgreement] = ()
    """Token by token, of a trainer in this process; those of several ranks stay in them."""


class Trainer(Protocol):
    """A trainer as a campaign sees it; one call at a time, each of them blocks."""

    no_tree: str | None
    """Why samples are trained as rows and not as prefix trees, if they are."""

    def step(self, rollouts: Sequence[Rollout]) -> TrainedStep:
        """Train on a step's rollouts; raises TrainingError and RoutingError."""
        ...

    def fit(self, examples: Sequence[Sample]) -> dict[str, Any]:
        """Train on examples and return the metrics; raises TrainingError."""
        ...

    def save(
        self,
        root: Path,
        *,
        step: int,
        state: dict[str, Any],
        keep: int,
        best: checkpoint.Checkpoint | None,
        run_id: str | None,
        tokenizer: Path | None,
    ) -> checkpoint.Checkpoint:
        """Write a checkpoint as ``checkpoint.save`` does; raises CheckpointError."""
        ...

    def save_adapters(self, directory: Path) -> None:
        """Write the adapters that are trained; raises OSError."""
        ...


class TrainerHere:
    """A ``Trainer`` in this process."""

    def __init__(self, trainer: LocalTrainer) -> None:
        self.local = trainer
        self.no_tree = trainer.no_tree

    def step(self, rollouts: Sequence[Rollout]) -> TrainedStep:
        """See ``Trainer.step``."""
        metrics = self.local.step(rollouts)
        local = self.local
        return TrainedStep(metrics, local.refused, local.failed_updates, local.agreements)

    def fit(self, examples: Sequence[Sample]) -> dict[str, Any]:
        """See ``Trainer.fit``."""
        from runners.training.supervised.step import train_on_examples  # imports torch

        return train_on_examples(self.local, examples)

    def save(self, root: Path, **options: Any) -> checkpoint.Checkpoint:
        """See ``Trainer.save``."""
        return checkpoint.save(self.local, root, **options)

    def save_adapters(self, directory: Path) -> None:
        """See ``Trainer.save_adapters``."""
        assert self.local.adapters is not None
        self.local.adapters.save(directory)
