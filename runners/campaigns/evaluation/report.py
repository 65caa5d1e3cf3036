"""Models of ``report.json``, the report of an evaluation.

The fields before ``report_version`` are those of SWE-bench's own report (schema 2), with the same
meaning; a test compares them with the package's own report. They are about the first rollout of
each task, as in ``predictions.jsonl``. Rates are over valid rollouts only: an infrastructure
failure is never counted as unsolved.

``python -m runners.campaigns.schema DIR`` writes their JSON schema; a change that breaks readers
raises ``report_version``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from rich.table import Table
from rich.text import Text

from conf.errors import ExitCode
from runners.observe.figures import LabelledTable
from runners.observe.live import format_duration
from runners.records.text import make_printable

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
    """Tasks that ``task.exclude`` names; they are in no count."""
    breakdown: Breakdown
    usage: Usage
    faults: FaultCounts
    wall_s: float
    further_samples: list[OfficialCounts]
    """Counts of each task's second rollout (``predictions-2.jsonl``), third rollout, …."""


CAUSES = {
    "pays": "an attack pays",
    "flaky": "the reference patch solves it in some gradings only",
    "gold": "the reference patch does not solve it",
    "empty": "the empty patch solves it",
}
"""Reasons for which a check sets a task aside."""
_PARTS = 12
"""Most rows of the breakdown; report.json has all."""
_NAMED = 10


def render_report(report: EvaluationReport, run_dir: Path) -> Table:
    """Return a table of an evaluation's results."""
    table = _facts(f"{report.benchmark}: {report.model_name_or_path}")
    for row in report.pass_at:
        table.add_row(f"pass@{row.k}", Text(_pass(row), style="bold"))
    rollouts = report.rollouts
    tasks = f"{report.total_instances:,} × {report.attempts_per_task}"
    table.add_row("tasks × attempts", tasks)
    table.add_row("valid rollouts", f"{rollouts.valid:,} of {rollouts.wanted:,}")
    table.add_row("  solved", f"{rollouts.solved:,}")
    table.add_row("  unsolved", f"{rollouts.unsolved:,}")
    for code, count in rollouts.errors.items():
        table.add_row(f"error: {code}", Text(f"{count:,}", style="yellow"))
    if rollouts.not_run:
        table.add_row("not run", f"{rollouts.not_run:,}")
    if report.tasks_without_verdict:
        table.add_row("tasks without a verdict", f"{len(report.tasks_without_verdict):,}")
    if report.official_resolved:
        official = sum(report.official_resolved.values())
        table.add_row("  resolved for swebench", f"{official:,}")
    if report.protected_touched:
        table.add_row("touched protected files", f"{len(report.protected_touched):,}")
    if report.egress:
        table.add_row("tried other hosts", f"{len(report.egress):,}")
    if report.unverified:
        table.add_row("solved, not verified", f"{len(report.unverified):,}")
    if report.signs:
        table.add_row("signs of tampering, to review", f"{len(report.signs):,}")
    for name, evidence in list(report.tampered.items())[:_NAMED]:
        table.add_row(f"tampered: {name}", Text(make_printable(evidence), style="red"))
    if (more := len(report.tampered) - _NAMED) > 0:
        table.add_row("", f"{more:,} more in report.json")
    if report.set_aside:
        table.add_row("set aside", f"{len(report.set_aside):,}")
    parts = list(report.breakdown.parts.items())
    for name, part in parts[:_PARTS]:
        rate = "–" if part.pass_at_1 is None else f"{part.pass_at_1:.1%}"
        table.add_row(f"{report.breakdown.by}: {name}", f"{rate} of {part.tasks:,}")
    if len(parts) > _PARTS:
        table.add_row("", f"{len(parts) - _PARTS} more in report.json")
    for name, spread in (
        ("turns", report.usage.turns),
        ("tokens sampled", report.usage.sampled_tokens),
    ):
        if spread is not None:
            table.add_row(f"{name}, mean / p50 / p95 / max", _spread(spread))
    if report.faults.injected:
        table.add_row("faults injected", f"{sum(report.faults.injected.values()):,}")
        table.add_row("attempts that failed", f"{sum(report.faults.failed_attempts.values()):,}")
    table.add_row("wall time", format_duration(report.wall_s))
    table.add_row("directory", Text(str(run_dir)))
    return table


def render_calibration(document: dict[str, Any]) -> Table:
    """Return a table of a check of tasks: how many are fit, and the others with reasons."""
    table = _facts(f"check of tasks, {document['times']} gradings of each patch")
    tasks, attacks = document["tasks"], document["attacks"]
    for name, key in (("reference patch solves", "gold_solved"), ("empty patch", "empty_solved")):
        table.add_row(name, Text(_share(document[key], tasks), style="bold"))
    paid = {name: each for name, each in attacks.items() if each["paid"]}
    table.add_row("attacks that pay", Text(f"{len(paid)} of {len(attacks)}", style="bold"))
    for name, each in paid.items():
        number = f"{each['paid']:,} of {each['tasks']:,} tasks"
        table.add_row(f"  {name}: {each['sentence']}", Text(number, style="red"))
    table.add_row("fit", Text(_share(document["fit"], tasks), style="bold"))
    for cause, number in document["causes"].items():
        table.add_row(f"set aside: {CAUSES[cause]}", f"{number:,}")
    for key, style in (("set_aside", "red"), ("not_graded", "yellow")):
        what, found = key.replace("_", " "), list(document[key].items())
        for name, reason in found[:_NAMED]:
            table.add_row(f"{what}: {name}", Text(make_printable(reason), style=style))
        if (more := len(found) - _NAMED) > 0:
            table.add_row("", f"and {more:,} more in calibration.json")
    table.add_row("directory", Text(document["run_dir"]))
    return table


def render_comparison(documents: list[dict[str, Any]]) -> LabelledTable:
    """Return a table with one row per evaluation or calibration of a sweep."""

    def build(labels: Sequence[str]) -> Table:
        table = Table(title="sweep", title_justify="left")
        table.add_column("run", overflow="fold")
        for column in ("pass@1", "pass@k", "solved", "errors"):
            table.add_column(column, justify="right")
        table.add_column("end")
        for label, document in zip(labels, documents, strict=True):
            code = ExitCode(document["exit_code"])
            style = "" if code is ExitCode.DONE else "red"
            end = Text(code.name.lower().replace("_", " "), style=style)
            table.add_row(label, *_cells(document), end)
        return table

    return LabelledTable([make_printable(document["label"]) for document in documents], build)


def _cells(document: dict[str, Any]) -> list[str]:
    if "gold_solved" in document:
        fit = f"{document['fit']:,} fit of {document['tasks']:,}"
        return ["–", "–", fit, f"{len(document['not_graded']):,}"]
    if "rollouts" not in document:  # The run could not start.
        return ["–"] * 4
    rollouts, rates = document["rollouts"], [PassAt(**row) for row in document["pass_at"]]
    return [
        _pass(rates[0]) if rates else "–",
        f"@{rates[-1].k} {rates[-1].value:.1%}" if len(rates) > 1 else "–",
        f"{rollouts['solved']:,} of {rollouts['valid']:,}",
        f"{rollouts['error'] + rollouts['not_run']:,}",
    ]


def render_regrading(document: dict[str, Any]) -> Table:
    """Return a table of a regrading: numbers of verdicts, and the verdicts that changed."""
    table = _facts(f"regraded {Path(document['run_dir']).name}")
    table.add_row("graded", f"{document['graded']:,} of {document['chosen']:,}")
    table.add_row("  solved", f"{document['solved']:,}")
    table.add_row("flips", f"{len(document['flips']):,}")
    for flip in document["flips"][:_NAMED]:
        change = f"{flip['before']} → {flip['after']}"
        table.add_row(f"  {flip['rollout_id']}", Text(change, style="bold yellow"))
    for name, reason in list(document["not_graded"].items())[:_NAMED]:
        table.add_row(f"not graded: {name}", Text(reason, style="yellow"))
    return table


def _facts(title: str) -> Table:
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(style="bright_black")
    table.add_column(justify="right", overflow="fold")
    return table


def _pass(row: PassAt) -> str:
    low, high = row.interval.low, row.interval.high
    return f"{row.value:.1%}  [{low:.1%}, {high:.1%}]"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}  ({part / whole:.0%})" if whole else "0"


def _spread(spread: Spread) -> str:
    return f"{spread.mean:,.1f} / {spread.p50:,.0f} / {spread.p95:,.0f} / {spread.max:,.0f}"
