"""The report of an evaluation: the form of ``report.json``.

The fields before ``report_version`` are those of SWE-bench's own report (schema 2) and mean what
they mean there, which the package itself says in a test; they are about the first rollout of each
task, which is what ``predictions.jsonl`` holds. Rates are over valid rollouts only: an
infrastructure failure is never counted as unsolved.

``report.schema.json`` is generated from these models by ``python -m runners.export.schema`` and
published beside them; a change that breaks readers raises ``report_version``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

REPORT_VERSION: Literal[1] = 1


class Part(BaseModel):
    """One part of the report."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class Official(Part):
    """SWE-bench's counts over one rollout per task. ``submitted`` = ``completed`` + ``empty_patch``
    + ``error``; ``completed`` = ``resolved`` + ``unresolved``.
    """

    total_instances: int
    submitted_instances: int
    """Tasks with a prediction."""
    completed_instances: int
    """Tasks with a graded patch that is not empty."""
    resolved_instances: int
    unresolved_instances: int
    infra_failure_instances: int
    """Of those neither resolved nor empty: the log shows what no patch can cause."""
    ambiguous_failure_instances: int
    """… the log shows what a patch may have caused, or the environment."""
    empty_patch_instances: int
    error_instances: int
    """Tasks with a patch whose grading failed."""
    completed_ids: list[str]
    incomplete_ids: list[str]
    """Tasks without a prediction."""
    empty_patch_ids: list[str]
    submitted_ids: list[str]
    resolved_ids: list[str]
    unresolved_ids: list[str]
    infra_failure_ids: list[str]
    ambiguous_failure_ids: list[str]
    failure_reasons: dict[str, str]
    """What the package ``swebench`` reads in the logs, by task; empty where it is not installed."""
    error_ids: list[str]


class Interval(Part):
    """A 95 % confidence interval."""

    low: float
    high: float


class PassAt(Part):
    """The chance that of k rollouts of a task one solves it."""

    k: int
    value: float
    """Mean over tasks of the unbiased estimate (Chen et al. 2021, arXiv 2107.03374)."""
    tasks: int
    """Tasks it is the mean of: those with at least k valid rollouts."""
    bootstrap: Interval
    """Percentile bootstrap over tasks."""
    wilson: Interval | None
    """Of k=1: Wilson's interval of solved / valid. With several rollouts per task it is too narrow,
    since those are not independent.
    """


class Rollouts(Part):
    """What became of the rollouts: ``wanted`` = ``valid`` + ``error`` + ``not_run``."""

    wanted: int
    valid: int
    """Graded; only these are in rates."""
    solved: int
    unsolved: int
    error: int
    not_run: int
    errors: dict[str, int]
    """By outcome code."""
    outcomes: dict[str, int]
    """The valid ones, by outcome code."""


class Spread(Part):
    """A distribution over the valid rollouts."""

    mean: float
    p50: float
    p95: float
    max: float


class Usage(Part):
    """What the valid rollouts took; null without any."""

    turns: Spread | None
    sampled_tokens: Spread | None
    seconds: Spread | None
    """From boot to verdict."""


class PartResult(Part):
    """The results of one part of the benchmark."""

    tasks: int
    valid: int
    """Rollouts."""
    solved: int
    pass_at_1: float | None
    """Null without a valid rollout."""


class Breakdown(Part):
    """The results by part."""

    by: str
    """What the parts are: the repository, the kind of bug."""
    parts: dict[str, PartResult]


class Faults(Part):
    """Faults that were made, and failures that were seen."""

    injected: dict[str, int]
    """Of the fault plan, as ``where.what``."""
    failed_attempts: dict[str, int]
    """By outcome code, those included that another attempt made good."""


class Report(Official):
    """An evaluation, summed up."""

    schema_version: Literal[2]
    """Of the fields above: SWE-bench's own."""
    report_version: Literal[1]
    """Of the fields below."""
    benchmark: str
    model_name_or_path: str
    run: str
    attempts_per_task: int
    rollouts: Rollouts
    pass_at: list[PassAt]
    """k = 1 … ``attempts_per_task``, as far as tasks have so many valid rollouts."""
    failed_ids: list[str]
    """Tasks whose first rollout ended in an infrastructure failure: with a patch (``error_ids``),
    or before there was one (among ``incomplete_ids``).
    """
    tampered: dict[str, list[str]]
    """Rollouts that changed what decides about their tests, and which files: grading put those
    back.
    """
    tasks_without_verdict: list[str]
    """Tasks of which no rollout is valid: the rates say nothing about them."""
    set_aside: list[str]
    """Tasks that calibration found unfit; they are in no count."""
    breakdown: Breakdown
    usage: Usage
    faults: Faults
    wall_s: float
    further_samples: list[Official]
    """The counts of each task's second rollout, of its third, …: ``predictions-2.jsonl``, …"""
