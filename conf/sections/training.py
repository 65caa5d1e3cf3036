"""What rollouts become, and how the policy learns from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.cluster import SlimeTrainerConfig
from conf.sections.section import Section

RewardShare = Literal["copy", "uniform", "token_share", "final_only", "root_only"]


class SegmentsFanoutConfig(Section):
    """Every segment of a rollout becomes a sample."""

    kind: Literal["segments"]
    reward: RewardShare
    """What each of the K kept segments gets of the rollout's advantage A: ``copy`` A; ``uniform``
    A / K; ``token_share`` A · n / Σn, n being its sampled tokens; ``final_only`` A on the final
    segment, 0 on the others; ``root_only`` A on the main thread's, 0 on sub-agents'.
    """
    max_segment_tokens: PositiveInt | None
    """A longer segment is dropped whole; null: no cap."""
    max_segments: PositiveInt | None
    """Of more, the final one and the first others are kept; null: no cap."""
    train_compaction: bool
    """Train the summaries that replaced a history."""
    train_subagents: bool
    """Train what sub-agents sampled: their wipes and summaries too."""
    train_side: bool
    """Train titles, topics and other requests aside."""


class CollapseFanoutConfig(Section):
    """Only a rollout's final segment becomes a sample."""

    kind: Literal["collapse"]
    max_segment_tokens: PositiveInt | None
    """A longer segment is dropped whole; null: no cap."""


FanoutConfig = Annotated[SegmentsFanoutConfig | CollapseFanoutConfig, Field(discriminator="kind")]


class RoutingOffConfig(Section):
    """Inference and training each choose their own experts."""

    kind: Literal["off"]


class RoutingRecomputeConfig(Section):
    """R2: the experts that training chooses before a step's first update stay for all of them."""

    kind: Literal["recompute"]


class RoutingRolloutConfig(Section):
    """R3: training uses the experts that inference chose (Ma et al. 2025, arXiv 2510.11370)."""

    kind: Literal["rollout"]
    on_fault: Literal["stop", "mask"]
    """A sample whose routing cannot be true stops the run, or is left out of the loss and counted.
    """
    shadow_every: Annotated[int, Field(ge=0)]
    """Every so many steps one forward more, without replay: what it is worth; 0: never."""
    alarm_disagreement: Annotated[float, Field(gt=0, le=1)]
    """Share of a layer's choices that training would not have made, from which on they are another
    token's or another layer's: the run stops, since no single sample is at fault.
    """


RoutingReplayConfig = Annotated[
    RoutingOffConfig | RoutingRecomputeConfig | RoutingRolloutConfig, Field(discriminator="kind")
]


class CorrectionConfig(Section):
    """What is done about rollouts whose logprobs training does not reproduce."""

    truncate: Literal["none", "token", "sequence"]
    """Truncated importance sampling (TIS): weigh each token by train / rollout probability, its own
    or its sequence's, at most ``cap``.
    """
    cap: PositiveFloat
    reject_outside: tuple[PositiveFloat, PositiveFloat] | None
    """Leave out a sequence whose geometric mean of the tokens' ratios lies outside; null: none."""


_Beta = Annotated[float, Field(ge=0, lt=1)]


class LocalTrainerConfig(Section):
    """GRPO in plain torch in the driver's process."""

    kind: Literal["local"]
    device: Literal["auto", "cpu", "cuda"]
    learning_rate: PositiveFloat
    betas: tuple[_Beta, _Beta]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_low: PositiveFloat
    clip_high: PositiveFloat
    grad_clip: PositiveFloat
    minibatches: PositiveInt
    """Optimizer updates per step (the step's rollouts are split into so many)."""
    epochs: PositiveInt
    """Passes over the step's rollouts."""
    tokens_per_microbatch: PositiveInt
    """Padded tokens in one forward; a prompt that its rows share counts once."""
    normalize_std: bool
    """Divide advantages by the group's standard deviation (GRPO); false: Dr. GRPO."""
    min_group: Annotated[int, Field(ge=2)]
    """Fewest valid rollouts for a baseline; a smaller group is dropped and counted."""
    train_unfinished: bool
    """Train rollouts that ran out of turns, tokens or time; false: they only enter the baseline."""
    threads: Annotated[int, Field(ge=0)]
    """Torch threads; 0: one per core."""
    correction: CorrectionConfig


TrainerConfig = Annotated[LocalTrainerConfig | SlimeTrainerConfig, Field(discriminator="kind")]
