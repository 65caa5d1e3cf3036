"""The learning rate of a training step, a function of its number: a resumed run goes on."""

from __future__ import annotations

import math

from conf.sections.training import PolicyGradientConfig


def find_learning_rate(trainer: PolicyGradientConfig, step: int) -> float:
    """Return the learning rate of training step ``step`` (1, 2, …).

    It rises to ``trainer.learning_rate`` in step f = max(1, ``warmup_steps``), and decays from
    there to ``min_learning_rate`` in the step after ``decay_steps`` (Loshchilov & Hutter 2017,
    arXiv 1608.03983, for ``cosine``). Megatron's is the same (``launch/slime_arguments.py``).
    """
    full, least, first = trainer.learning_rate, trainer.min_learning_rate, trainer.warmup_steps
    if step <= first:
        return full * step / first
    if trainer.decay == "constant":
        return full
    first = max(1, first)
    done = min(1.0, (step - first) / max(1, trainer.decay_steps + 1 - first))
    left = 1.0 - done if trainer.decay == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return least + (full - least) * left
