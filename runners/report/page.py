"""Writes the report of a run, ``report.html``, which has no scripts and loads nothing.

It is made from the store alone. The run may be running; nothing of it is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from runners.observe.swimlane import AttemptSpans
from runners.report.against import Against, build_against
from runners.report.alarms import build_alarms
from runners.report.cost_section import build_cost
from runners.report.document import render_document, write_document
from runners.report.links import Links
from runners.report.overview import build_curves, build_head, build_outcomes
from runners.report.report_data import ReportData, read_report_data
from runners.report.rollouts import (
    build_branches,
    build_configuration,
    build_failures,
    build_rollouts,
    build_tampering,
)
from runners.report.routing import build_routing
from runners.report.swimlane import read_attempts
from runners.report.task_rates import build_held_out_tasks, build_task_rates
from runners.report.unsolved import build_unsolved
from runners.store.run_store import RunStore

NAME = "report.html"
QUICK = 5_000
"""Attempts whose report takes about a second: up to there a run writes it at its end."""


def write_report(run_dir: Path, out: Path | None = None, against: Against | None = None) -> Path:
    """Write a run's report to ``out`` (None: ``RUN/report.html``) and return its path.

    ``against``: its comparison with another run, task by task. Raises StoreError and ReportError.
    """
    path = run_dir / NAME if out is None else out
    with RunStore.open(run_dir, read_only=True) as store:
        text = render_report(store, path, against)
    write_document(path, text, "--out")
    return path


def is_quick(run_dir: Path) -> bool:
    """Return whether a run's report takes about a second at most; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        ((attempts,),) = store.query("SELECT count(*) FROM rollout")
    return int(attempts) <= QUICK


def render_report(store: RunStore, path: Path, against: Against | None = None) -> str:
    """Return the page, which will lie at ``path``, with a section about another run if given."""
    facts = read_report_data(store)
    links = Links(store.run_dir, path)
    config = json.dumps(facts.config, indent=2, ensure_ascii=False)
    parts = [
        build_alarms(facts),
        build_curves(facts),
        build_outcomes(facts),
        None if against is None else build_against(against, links),
        build_task_rates(facts, links),
        build_held_out_tasks(facts, links),
        build_routing(facts),
        build_branches(facts),
        build_rollouts(facts, list(_lanes(store, facts)), links),
        build_cost(facts.cost),
        build_tampering(facts, links),
        build_unsolved(facts, links),
        build_failures(facts, links),
        build_configuration(facts, config),
    ]
    parts.insert(-1, links.build())  # of the links that the sections above have made
    title = f"{store.run_dir.resolve().name} · report"
    return render_document(title, build_head(facts), parts)


def _lanes(store: RunStore, facts: ReportData) -> Iterator[tuple[str, list[AttemptSpans]]]:
    """Yield title and attempts of the newest, slowest and first step, or of an evaluation."""
    steps = sorted(facts.sums.ends)
    if not steps:
        ((step,),) = store.query("SELECT max(step) FROM rollout WHERE split = 'eval'")
        if step is not None:
            yield "The evaluation", read_attempts(store, step, "eval")
        return
    took = {step["step"]: step["time/step_s"] for step in facts.steps if "time/step_s" in step}
    chosen = {steps[-1]: f"Step {steps[-1]}, the newest"}
    if took:
        slowest = max(took, key=lambda step: took[step])
        chosen.setdefault(slowest, f"Step {slowest}, the slowest ({took[slowest]:.1f} s)")
    chosen.setdefault(steps[0], f"Step {steps[0]}, the first")
    for step, title in chosen.items():
        yield title, read_attempts(store, step, "train")
