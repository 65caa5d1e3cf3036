"""Tell which samples change the weights: the trainer runs them, the metrics count them."""

from __future__ import annotations

from conf.sections.plugin import PluginConfig
from conf.sections.training import LocalTrainerConfig, TrainerConfig
from runners.training.sample import Sample


def trains_without_advantage(trainer: TrainerConfig) -> bool:
    """Return whether tokens with an advantage of 0 have a gradient: a KL penalty, an entropy bonus,
    a teacher, or a loss of the user's own, which may do anything.
    """
    return isinstance(trainer, LocalTrainerConfig) and (
        isinstance(trainer.loss, PluginConfig)
        or trainer.kl.weight > 0
        or trainer.entropy_bonus > 0
        or trainer.distill.url is not None
    )


def has_gradient(sample: Sample, trainer: TrainerConfig) -> bool:
    """Return whether a sample changes the weights, as far as its advantage decides it."""
    trains = sample.has_advantage or trains_without_advantage(trainer)
    return trains and bool(sample.loss_mask.any())
