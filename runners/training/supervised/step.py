"""A training step on examples: maximum likelihood with the trainer's own optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from conf.sections.training import LocalTrainerConfig
from runners.training.local import LocalTrainer
from runners.training.objective import Objective
from runners.training.sample import Sample


def train_on_examples(trainer: LocalTrainer, examples: Sequence[Sample]) -> dict[str, Any]:
    """Make one update whose loss is the mean of −log p over all trained tokens of ``examples``, at
    temperature 1 and with the experts that training chooses; return its metrics, those that compare
    with rollouts being None.

    Weights, optimizer, learning rate and the count of steps are the trainer's. ``examples`` have
    advantage 1. Raises TrainingError.
    """
    likelihood = copy(trainer)
    likelihood.config = _maximize_likelihood(trainer.config)
    likelihood.objective = Objective(likelihood.config)
    likelihood.temperature, likelihood.replay, likelihood.reference = 1.0, None, None
    metrics = likelihood.step([[example] for example in examples])
    trainer.steps = likelihood.steps
    kept = ("policy/grad_norm", "train/updates", "train/learning_rate", "time/train_s")
    return dict.fromkeys(metrics) | {
        "sft/nll": metrics["loss/policy"],
        "sft/examples": len(examples),
        "sft/tokens": sum(int(example.loss_mask.sum()) for example in examples),
        **{key: metrics[key] for key in kept},
    }


def _maximize_likelihood(config: LocalTrainerConfig) -> LocalTrainerConfig:
    """Return a configuration whose loss, of samples with advantage 1, is −log p per token."""
    correction = {"truncate": "none", "mask_outside": None, "reject_outside": None}
    return config.model_copy(
        update={
            "loss": "reinforce",
            "aggregation": "token",
            "minibatches": 1,
            "epochs": 1,
            "entropy_bonus": 0.0,
            "kl": config.kl.model_copy(update={"weight": 0.0}),
            "correction": config.correction.model_copy(
                update=correction | {"reject_negative_above": None}
            ),
        }
    )
