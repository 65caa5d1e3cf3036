"""Models of ``report.json``, the report of an evaluation.

The fields before ``report_version`` are those of SWE-bench's own report (schema 2), with the same
meaning; a test compares them with the package's own report. They are about the first rollout of
each task, as in ``predictions.jsonl``. Rates are over valid rollouts only: an infrastructure
failure is never counted as unsolved.

``python -m runners.campaigns.schema DIR`` writes their JSON schema; a change that breaks readers
raises ``report_version``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

REPORT_VERSION: Literal[2] = 2


class ReportModel(BaseModel):
    """Base class of the report's parts."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class OfficialCounts(ReportModel):
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
    """Tasks neither resolved nor empty whose log shows a failure that no patch can cause."""
    ambiguous_failure_instances: int
    """Tasks neither resolved nor empty whose log shows a failure that patch or environment may have
    caused.
    """
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
    """Reasons that the package ``swebench`` reads from the logs, by task; empty without it."""
    error_ids: list[str]


class Interval(ReportModel):
    """A 95 % confidence interval."""

    low: float
    high: float


class PassAt(ReportModel):
    """Probability that at least one of k rollouts of a task solves it."""

    k: int
    value: float
    """Mean over tasks of the unbiased estimate (Chen et al. 2021, arXiv 2107.03374)."""
    tasks: int
    """Number of tasks in the mean: those with at least k valid rollouts."""
    interval: Interval
    """The bootstrap's; Wilson's over tasks where the tasks do not differ, or each has one value of
    0 or 1: resampled, equal values show no uncertainty.
    """
    bootstrap: Interval
    """Percentile bootstrap over tasks."""
    wilson: Interval | None
    """For k=1: Wilson's interval of solved / valid. With several rollouts per task it is too
    narrow, because they are not independent.
    """


class RolloutCounts(ReportModel):
    """Numbers of rollouts: ``wanted`` = ``valid`` + ``error`` + ``not_run``."""

    wanted: int
    valid: int
    """Graded rollouts; rates are over these only."""
    solved: int
    unsolved: int
    error: int
    not_run: int
    errors: dict[str, int]
    """Errors, by outcome code."""
    outcomes: dict[str, int]
    """Valid rollouts, by outcome code."""


class Spread(ReportModel):
    """A distribution over the valid rollouts."""

    mean: float
    p50: float
    p95: float
    max: float


class Usage(ReportModel):
    """Resources that the valid rollouts used; null without valid rollouts."""

    turns: Spread | None
    sampled_tokens: Spread | None
    seconds: Spread | None
    """From the sandbox's boot to the verdict."""


class PartResult(ReportModel):
    """The results of one part of the benchmark."""

    tasks: int
    valid: int
    """Valid rollouts."""
    solved: int
    pass_at_1: float | None
    """Null without a valid rollout."""


class Breakdown(ReportModel):
    """Results by part of the benchmark."""

    by: str
    """Criterion of the parts, e.g. repository or kind of bug."""
    parts: dict[str, PartResult]


class FaultCounts(ReportModel):
    """Injected faults and observed failures."""

    injected: dict[str, int]
    """Faults injected by the fault plan, by ``where.what``."""
    failed_attempts: dict[str, int]
    """Failed attempts by outcome code, including those after which another attempt succeeded."""


class EvaluationReport(OfficialCounts):
    """Summary of an evaluation."""

    schema_version: Literal[2]
    """Version of the fields above, which are SWE-bench's own."""
    report_version: Literal[2]
    """Version of the fields below."""
    benchmark: str
    model_name_or_path: str
    run: str
    attempts_per_task: int
    rollouts: RolloutCounts
    pass_at: list[PassAt]
    """For k = 1 … ``attempts_per_task``, as long as some task has k valid rollouts."""
    failed_ids: list[str]
    """Tasks whose first rollout ended in an infrastructure failure: after its patch was captured
    (also in ``error_ids``), or before (also in ``incomplete_ids``).
    """
    tampered: dict[str, str]
    """Rollouts whose patch made the tests pass without doing what they ask, with the evidence; they
    are unsolved.
    """
    protected_touched: dict[str, list[str]]
    """Rollouts that changed files which decide about their tests, with these files. Often innocent:
    grading restored them.
    """
    egress: dict[str, list[str]]
    """Rollouts whose agent tried to reach hosts besides the gateway, with these: ``denied
    HOST:PORT`` or ``allowed HOST:PORT``. Seen by sandbox=docker only.
    """
    unverified: dict[str, str]
    """Solved rollouts that no canary could check, with the reason."""
    signs: dict[str, list[str]]
    """Rollouts whose patch has static signs of tampering, for review; signs decide nothing."""
    official_resolved: dict[str, bool]
    """Rollouts that the ``swebench`` package judged, with its own verdict: whether they resolve
    their task. Nothing of ours changes it.
    """
    tasks_without_verdict: list[str]
    """Tasks without a valid rollout; they are not in the rates."""
    set_aside: list[str]
    """Tasks that a calibration found unfit; they are in no count."""
    breakdown: Breakdown
    usage: Usage
    faults: FaultCounts
    wall_s: float
    further_samples: list[OfficialCounts]
    """Counts of each task's second rollout (``predictions-2.jsonl``), third rollout, …."""
