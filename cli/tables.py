"""Render the plan of a run and the comparison of runs as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.invocation import SHOWN
from conf.errors import ExitCode
from conf.exact_tokens import describe_inexactness
from conf.plan_numbers import find_key_numbers
from launch.gpu import GpuPlan
from launch.local import LocalPlan
from launch.preflight import Problem
from runners.campaigns.jobs import Job
from runners.observe.figures import LabelledTable, count_trained
from runners.observe.live import format_duration
from runners.records.text import make_line, make_printable
from runners.tasks.sets import TaskListing


def _facts(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def render_tasks(listing: TaskListing) -> RenderableType:
    """Return the tasks of a dataset; a task that cannot be run has its reason below its id."""
    table = Table(title=make_printable(listing.path), title_justify="left")
    for column in ("state", "split", "schema"):
        table.add_column(column, no_wrap=True)
    table.add_column("id", overflow="fold")
    for task in listing.tasks:
        name = Text(make_printable(task.id))
        if task.reason:
            name.append(f"\n{make_printable(task.reason)}", style="bright_black")
        table.add_row(task.state, task.split, task.schema, name)
    counts = ", ".join(f"{number:,} {state}" for state, number in listing.states.items())
    aside = f"; {len(listing.set_aside):,} set aside" if listing.set_aside else ""
    return Group(table, Text((counts or "no task is meant") + aside))


def render_plan(job: Job, plan: LocalPlan, *, policy: str) -> RenderableType:
    """Return the plan of a job on this machine."""
    run, held_out = job.config.run, job.config.eval_task.kind == "held_out"
    facts = _facts(f"plan{' of ' + job.label if job.label else ''}")
    facts.add_row("directory", str(job.run_dir))
    facts.add_row("policy", policy)
    facts.add_row(
        "training",
        f"{plan.rollouts:,} rollouts: {run.steps} steps × {run.tasks_per_step} tasks × "
        f"{run.rollouts_per_task}, {plan.concurrency} at a time",
    )
    facts.add_row(
        "evaluation",
        f"{plan.evaluation_rollouts:,} rollouts: {plan.evaluations} × {run.eval_tasks} "
        + ("held-out tasks" if held_out else f"tasks of eval_task={job.config.eval_task.kind}")
        + (f" × {run.eval_attempts}" if run.eval_attempts > 1 else ""),
    )
    for name, value in find_key_numbers(job.config).describe().items():
        facts.add_row(name, value)
    if (inexact := describe_inexactness(job.config)) is not None:
        facts.add_row("tokens", inexact)
    facts.add_row("memory", f"about {plan.memory_mb:,} MB of {plan.memory_available_mb:,} MB free")
    for name, value in _describe_gpu(plan.gpu):
        facts.add_row(name, value)
    facts.add_row("disk", f"about {plan.disk_mb:,} MB of {plan.disk_free_mb:,} MB free")
    processes = Table(title=f"processes on {plan.cores} cores", title_justify="left")
    processes.add_column("process")
    for column in ("count", "threads", "MB each"):
        processes.add_column(column, justify="right")
    for process in plan.processes:
        processes.add_row(
            process.name, str(process.count), str(process.threads), f"{process.memory_mb:,}"
        )
    changes = _facts("changes")
    for key, value in job.changes().items():
        changes.add_row(key, str(value))
    return Group(facts, processes, *([changes] if changes.row_count else []))


def _describe_gpu(gpu: GpuPlan | None) -> Iterator[tuple[str, str]]:
    if gpu is None:
        return
    layers = "recomputed" if gpu.recompute else "kept"
    yield (
        "GPU: trainer",
        f"about {gpu.trainer_gib:.1f} GiB: {gpu.states_gib:.1f} weights, gradients and AdamW "
        f"({gpu.parameters:,} parameters), {gpu.activations_gib:.1f} activations ({layers}) and "
        f"{gpu.logits_gib:.1f} logits of {gpu.tokens:,} tokens",
    )
    if gpu.engine_gib is not None:
        yield "GPU: engine", f"{gpu.engine_gib:.1f} GiB"
    if gpu.gpu_gib is not None:
        yield "GPU", f"{gpu.gpu_gib:.1f} GiB"


def render_problems(
    jobs: Sequence[Job], plans: Sequence[LocalPlan], code: ExitCode
) -> RenderableType:
    """Return the problems of all plans, each once: the warnings, then the errors with the exit code
    of the run, so that they are the last lines on the terminal.
    """
    found: dict[Problem, list[str]] = {}
    for job, plan in zip(jobs, plans, strict=True):
        for problem in dict.fromkeys(plan.problems):
            found.setdefault(problem, []).append(job.label)
    lines: list[Text] = []
    for fatal, what, style in ((False, "warning", "yellow"), (True, "error", "bold red")):
        kind = [problem for problem in found if problem.fatal == fatal]
        for problem in kind[:SHOWN]:
            of = "" if len(found[problem]) == len(jobs) else f"{', '.join(found[problem])}: "
            lines.append(Text(make_printable(f"{what}: {of}{problem.message}"), style))
        if (more := len(kind) - SHOWN) > 0:
            lines.append(Text(f"and {more:,} more {what}s", style))
    if code is not ExitCode.DONE:
        lines.append(Text(f"agentrl run would start nothing (exit code {code:d})", "bold red"))
    return Group(*(lines or [Text("no problems found", "green")]))


def render_comparison(
    documents: list[dict[str, Any]],
    seeds: Sequence[dict[str, Any]] = (),
    *,
    title: str = "sweep",
) -> LabelledTable:
    """Return a table with one row per run: its results and its end or present state.

    The last solve rate has its 95 % interval. Below are the means of runs that differ in their seed
    alone, ``seeds``, with the interval over these.
    """

    def build(labels: Sequence[str]) -> Table:
        # without vertical lines it fits into 80 columns
        table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("run", overflow="fold")
        for column in ("steps", "held-out %", "reward", "trained", "k3", "time"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("end")
        left = iter(labels)
        for rows in (documents, seeds):
            best = max((_last(document) for document in rows), default=-1.0)
            for document in rows:
                table.add_row(next(left), *_result_cells(document, best))
            table.add_section()
        return table

    return LabelledTable(
        [make_printable(document["label"]) for document in (*documents, *seeds)], build
    )


def _result_cells(document: dict[str, Any], best: float) -> Iterator[RenderableType]:
    if "eval" not in document:  # The run could not start.
        yield from ["–"] * 6
    else:
        style = "bold green" if 0 <= _last(document) == best else ""
        yield str(document["steps"])
        yield Text(_rates(**document["eval"]), style)
        yield _figure(document["reward"], ".3f")
        yield f"{count_trained(document['tokens']):,}"
        yield _figure(document["k3"], ".1e")
        yield format_duration(document["wall_s"])
    yield _end(document)


def render_differences(differences: dict[str, list[Any]], labels: list[str]) -> RenderableType:
    """Return a table of the keys in which runs differ, with one column per run."""
    if not differences:
        return Text("their configurations are the same", style="green")

    def build(headings: Sequence[str]) -> Table:
        table = Table(title="keys in which they differ", title_justify="left")
        table.add_column("key", style="bright_black", overflow="fold")
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for key, values in differences.items():
            table.add_row(
                key, *("–" if value is None else make_printable(str(value)) for value in values)
            )
        return table

    return LabelledTable([make_printable(label) for label in labels], build)


_NAMED = 12
"""Most tasks that are named of those that a run gained, or lost."""


_NAME_LENGTH = 120
"""Characters of a task's name among others."""


def render_pairs(pairs: Sequence[dict[str, Any]]) -> RenderableType:
    """Return runs against the first one: the paired test over tasks, then the flips by name."""

    def build(labels: Sequence[str]) -> Table:
        title = f"task by task, against {make_printable(pairs[0]['against'])}"
        table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("run", overflow="fold")
        for column in ("tasks", "difference", "p", "gained", "lost"):
            table.add_column(column, justify="right", no_wrap=True)
        for label, pair in zip(labels, pairs, strict=True):
            low, high = pair["interval"]
            points = f"{100 * pair['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            counts = (str(len(pair["gained"])), str(len(pair["lost"])))
            table.add_row(label, f"{pair['tasks']:,}", points, f"{pair['p']:.2g}", *counts)
        return table

    flips = Table.grid(padding=(0, 2, 0, 0))
    flips.add_column(no_wrap=True, style="bright_black")
    flips.add_column(overflow="fold")
    for pair in pairs:
        for what in ("gained", "lost"):
            if names := pair[what]:
                more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
                text = ", ".join(make_line(name, _NAME_LENGTH) for name in names[:_NAMED]) + more
                flips.add_row(what, Text(f"{make_printable(pair['run'])}: {text}"))
    table = LabelledTable([make_printable(pair["run"]) for pair in pairs], build)
    return Group(table, flips) if flips.row_count else table


def _end(document: dict[str, Any]) -> Text:
    state = document.get("state")
    if state is None:
        code = ExitCode(document["exit_code"])
        state = code.name.lower().replace("_", " ")
    return Text(state, style={"done": "", "mean": "", "running": "cyan"}.get(state, "red"))


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _last(document: dict[str, Any]) -> float:
    rate = document.get("eval", {}).get("last")
    return -1.0 if rate is None else float(rate)


def _rates(first: float | None, last: float | None, interval: Sequence[float] | None = None) -> str:
    """Return ``25.0 → 75.0 (62–85)``: both rates in per cent, and the interval of the last."""
    text = " → ".join(f"{100 * rate:.1f}" for rate in (first, last) if rate is not None) or "–"
    return f"{text} ({100 * interval[0]:.0f}–{100 * interval[1]:.0f})" if interval else text
