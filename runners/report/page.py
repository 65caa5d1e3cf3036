"""Writes the report of a run, ``report.html``, which has no scripts and loads nothing.

It is made from the store alone. The run may be running; nothing of it is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from runners.observe.swimlane import AttemptSpans
from runners.processes.atomic_write import atomic_file
from runners.report.alarms import build_alarms
from runners.report.cost_section import build_cost
from runners.report.element import make, render_html
from runners.report.overview import build_curves, build_head, build_outcomes
from runners.report.report_data import ReportData, read_report_data
from runners.report.rollouts import (
    Links,
    build_branches,
    build_configuration,
    build_failures,
    build_rollouts,
    build_tampering,
)
from runners.report.routing import build_routing
from runners.report.swimlane import read_attempts
from runners.report.task_rates import build_task_rates
from runners.report.unsolved import build_unsolved
from runners.store.run_store import RunStore

NAME = "report.html"
QUICK = 5_000
"""Attempts whose report takes about a second: up to there a run writes it at its end."""
_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class ReportError(AgentrlError):
    """The report cannot be written to its path."""

    exit_code = ExitCode.USAGE


def write_report(run_dir: Path, out: Path | None = None) -> Path:
    """Write a run's report to ``out`` (None: ``RUN/report.html``) and return its path; raises
    StoreError and ReportError.
    """
    path = run_dir / NAME if out is None else out
    with RunStore.open(run_dir, read_only=True) as store:
        text = render_report(store, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            partial.write_text(text, "utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"{path} cannot be written ({reason}): choose another --out") from error
    return path


def is_quick(run_dir: Path) -> bool:
    """Return whether a run's report takes about a second at most; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        ((attempts,),) = store.query("SELECT count(*) FROM rollout")
    return int(attempts) <= QUICK


def render_report(store: RunStore, path: Path) -> str:
    """Return the page, which will lie at ``path``."""
    facts = read_report_data(store)
    links = Links(store.run_dir, path)
    config = json.dumps(facts.config, indent=2, ensure_ascii=False)
    parts = [
        build_alarms(facts),
        build_curves(facts),
        build_outcomes(facts),
        build_task_rates(facts),
        build_routing(facts),
        build_branches(facts),
        build_rollouts(facts, list(_lanes(store, facts)), links),
        build_cost(facts.cost),
        build_tampering(facts, links),
        build_unsolved(facts, links),
        build_failures(facts, links),
        build_configuration(facts, config),
    ]
    shown = [part for part in parts if part is not None]
    names = [(part[0].text or "", f"#{part.get('id')}") for part in shown]
    bar = make("nav", *(make("a", name, href=place) for name, place in names))
    return render_html(
        make(
            "html",
            make(
                "head",
                make("meta", charset="utf-8"),
                make("meta", name="viewport", content="width=device-width, initial-scale=1"),
                make("meta", http_equiv="Content-Security-Policy", content=_POLICY),
                make("title", f"{store.run_dir.resolve().name} · report"),
                make("style", _STYLE.read_text("utf-8")),
            ),
            make("body", build_head(facts), bar, make("main", *shown)),
            lang="en",
        )
    )


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
