"""Tell which samples change the weights: the trainer runs them, the metrics count them."""

from __future__ import annotations

from conf.sections.training import TrainerConfig
from runners.records.chain_choice import trains_without_advantage
from runners.training.sample import Sample


def has_gradient(sample: Sample, trainer: TrainerConfig) -> bool:
    """Return whether a sample changes the weights, as far as its advantage decides it."""
    trains = sample.has_advantage or trains_without_advantage(trainer)
    return trains and bool(sample.loss_mask.any())
