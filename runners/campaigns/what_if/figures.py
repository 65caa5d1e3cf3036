"""The figures of a step's samples by which two rules are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from conf.sections.training import LocalTrainerConfig, TrainerConfig
from runners.training.advantages import key_of
from runners.training.sample import Sample, compute_token_weights, has_gradient
from runners.training.step_samples import StepSamples


@dataclass(frozen=True, slots=True)
class RuleFigures:
    """Sums over the rollouts of one step, or of several."""

    rollouts: int
    graded: int
    reward_sum: float
    groups: int
    groups_with_gradient: int
    """Groups of which some token has a gradient."""
    tokens_trained: int
    """Sampled tokens with a gradient, as ``tokens/trained``."""
    tokens_up: int
    """Those of them with a positive advantage: they are made likelier."""
    tokens_down: int
    weight_up: float
    """Sum of weight × advantage over the tokens with a positive one, the step being one update."""
    weight_down: float
    """Likewise of the others, as a positive number."""

    @property
    def reward_mean(self) -> float | None:
        """Mean reward of the graded rollouts."""
        return self.reward_sum / self.graded if self.graded else None

    @property
    def share_up(self) -> float | None:
        """Share of the trained tokens that are made likelier."""
        return self.tokens_up / self.tokens_trained if self.tokens_trained else None

    @property
    def share_down(self) -> float | None:
        """Share of the trained tokens that are made less likely."""
        return self.tokens_down / self.tokens_trained if self.tokens_trained else None

    def to_dict(self) -> dict[str, float | None]:
        """Return the sums, and the means and shares that they make."""
        derived = {name: getattr(self, name) for name in ("reward_mean", "share_up", "share_down")}
        return asdict(self) | derived


def add_figures(figures: Sequence[RuleFigures]) -> RuleFigures:
    """Return the sums over several steps."""
    names = [each.name for each in fields(RuleFigures)]
    return RuleFigures(**{name: sum(getattr(each, name) for each in figures) for name in names})


def measure(step: StepSamples, trainer: TrainerConfig) -> RuleFigures:
    """Return the figures of a step."""
    constant = trainer.aggregation_tokens if isinstance(trainer, LocalTrainerConfig) else 1
    weights = compute_token_weights(step.rollouts, trainer.mean_of_losses, constant)
    samples = [sample for samples in step.rollouts for sample in samples]
    up = down = 0
    weight_up = weight_down = 0.0
    for sample, weight in zip(samples, weights, strict=True):
        if not has_gradient(sample, trainer):
            continue
        for advantage, tokens in _count_advantages(sample):
            if advantage > 0:
                up, weight_up = up + tokens, weight_up + weight * advantage * tokens
            elif advantage < 0:
                down, weight_down = down + tokens, weight_down - weight * advantage * tokens
    rewards = [record.reward for record in step.records if record.reward is not None]
    return RuleFigures(
        rollouts=len(step.records),
        graded=len(rewards),
        reward_sum=sum(rewards),
        groups=len({key_of(record) for record in step.records}),
        groups_with_gradient=len({key_of(r) for r in step.records if r.trained_tokens}),
        tokens_trained=step.trained.total(),
        tokens_up=up,
        tokens_down=down,
        weight_up=weight_up,
        weight_down=weight_down,
    )


def _count_advantages(sample: Sample) -> Iterable[tuple[float, int]]:
    """Return the advantages of a sample's trained tokens, each with the number of its tokens."""
    if sample.token_advantages is None:
        return [(sample.advantage, int(sample.loss_mask.sum()))]
    values, counts = np.unique(sample.trained_advantages, return_counts=True)
    return zip(values.tolist(), counts.tolist(), strict=True)
