"""The size of a run, its sampling, its evaluation, and its display."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, PositiveInt, Tag

from conf.sections.plugin import BY_NAME, SELECT, ByTarget, by_name
from conf.sections.section import Follows, Section


def _top_k(value: int) -> int:
    if value == 0 or value < -1:
        raise ValueError("must be -1 (the whole vocabulary) or at least 1")
    return value


OverlapName = Literal["none", "step", "stream"]
FIXED_STALENESS = {"none": 0, "step": 1}
"""Updates between rollouts and their training, of the modes that have no key for it."""
STALENESS, WINDOW = 4, 1
"""Of ``stream`` where the configuration gives none: the mean age is then about 1."""
SamplerName = Literal["epoch", "curriculum"]
SamplerChoice = Annotated[
    Annotated[SamplerName, Tag(BY_NAME)] | ByTarget,
    SELECT,
    by_name("samplers", *get_args(SamplerName)),
]


class RunConfig(Section):
    """The size of a run and its directory."""

    dir: Path | None = None
    """Run directory; null picks ``runs/<date>-<time>-<scenario>`` below the current directory."""
    steps: Annotated[int, Field(ge=0)] = 100
    """Training steps; 0 only evaluates."""
    tasks_per_step: PositiveInt = 8
    """Groups (tasks) per step."""
    sampler: SamplerChoice = "epoch"
    """Tasks of each step: ``epoch``, each once per pass over its set, in an order of its own;
    ``curriculum``, those that are solved about half of the time; or a plug-in.
    """
    rollouts_per_task: PositiveInt = 8
    """Rollouts per group (GRPO's group size)."""
    eval_tasks: Annotated[int, Field(ge=0)] = 0
    """Tasks per evaluation, of ``eval_task``; 0 switches evaluation off."""
    eval_attempts: PositiveInt = 1
    """Rollouts per task of an evaluation (k): the solve rate is their mean, pass@2 to pass@k are
    estimated.
    """
    eval_every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations, besides those before the first and after the last step; 0: only
    those two.
    """
    overlap: OverlapName = "none"
    """Rollouts while a step is trained (docs/asynchronous.md): ``none``, they take turns; ``step``,
    those of the next step; ``stream``, those of further ones, which go on while weights change. Not
    ``none``: set ``trainer.correction.truncate``.
    """
    staleness: Annotated[int, Field(ge=0)] | None = None
    """Of ``stream``: most updates between the weights that a group began with and those that are
    trained on it; null: 4. 0 is as ``none``.
    """
    window: Annotated[int, Field(ge=0)] | None = None
    """Of ``stream``: steps beyond the next whose groups may begin; null: 1, or less with less
    ``staleness``.
    """
    keep_checkpoints: PositiveInt = 2
    """Number of newest checkpoints that are kept; each step writes one. The one with the best
    evaluation is kept besides.
    """


class SamplingConfig(Section):
    """Sampling of the policy, in training and evaluation."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature in training. Logprobs are those of the distribution at this temperature.
    """
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling; 1.0: the whole distribution, which training needs (docs/algorithms.md)."""
    top_k: Annotated[int, AfterValidator(_top_k)] = -1
    """Sample from the k most probable tokens only; -1: the whole vocabulary, which training needs.
    """
    max_new_tokens: Annotated[
        PositiveInt, Follows("${least:32768,${fraction:${model.max_context_tokens},1,2}}")
    ]
    """Sampled tokens per turn; a client's smaller ``max_tokens`` takes precedence."""
    eval_temperature: Annotated[float, Field(ge=0, le=10), Follows("${sampling.temperature}")]
    """Sampling temperature in evaluation; 0: greedy."""


class EvalConfig(Section):
    """The tasks that ``agentrl eval`` runs."""

    tasks: PositiveInt | None = None
    """Largest number of tasks; null: all."""
    offset: Annotated[int, Field(ge=0)] = 0
    """Number of tasks that are skipped first."""
    ids: str = "*"
    """Only tasks whose id matches this glob."""
    attempts_per_task: PositiveInt = 1
    """Rollouts per task (n); pass@1 to pass@n are estimated."""
    update_weights: bool = False
    """Load ``model.path`` into the servers of engine=sglang before; false: their own weights are
    measured and stay.
    """
