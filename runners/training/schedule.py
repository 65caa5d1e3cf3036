"""The learning rate of a training step, a function of its number: a resumed run goes on."""

from __future__ import annotations

import math

from conf.sections.training import LocalTrainerConfig


def find_learning_rate(trainer: LocalTrainerConfig, step: int) -> float:
    """Return the learning rate of training step ``step`` (1, 2, …).

    It rises to ``trainer.learning_rate`` in step ``warmup_steps``; the step after begins the decay,
    which would reach ``min_learning_rate`` in the step after ``decay_steps`` (Loshchilov & Hutter
    2017, arXiv 1608.03983, for ``cosine``).
    """
    full, least, warmup = trainer.learning_rate, trainer.min_learning_rate, trainer.warmup_steps
    if step <= warmup:
        return full * step / warmup
    if trainer.decay == "constant":
        return full
    done = min(1.0, (step - 1 - warmup) / max(1, trainer.decay_steps - warmup))
    left = 1.0 - done if trainer.decay == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return least + (full - least) * left
