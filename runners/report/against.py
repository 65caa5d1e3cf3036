"""Builds the section of a report that compares its run with another one, task by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

from runners.observe.task_rates import read_examples
from runners.report.element import Child, make
from runners.report.links import Links
from runners.report.number_format import format_count, format_quantity
from runners.report.paired import PairedResult, Verdicts, compare_tasks, read_verdicts
from runners.report.table import make_details, make_section, make_table
from runners.store.run_store import RunStore

_FEW = 30
"""Most tasks that are listed unfolded."""


@dataclass(frozen=True, slots=True)
class Against:
    """A run beside another one, by their last evaluations."""

    label: str
    """Of the other run."""
    ours: Mapping[str, Verdicts]
    theirs: Mapping[str, Verdicts]
    pair: PairedResult | None
    """None: no task was measured by both."""
    examples: Mapping[str, str]
    """Task → a rollout of this run."""


def read_against(store: RunStore, run_dir: Path) -> Against:
    """Compare the run of a store with that in ``run_dir``; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as other:
        theirs = read_verdicts(other)
    ours = read_verdicts(store)
    run, against = store.run_dir.resolve().name, run_dir.resolve().name
    if run == against:
        run, against = str(store.run_dir), str(run_dir)
    pair = compare_tasks(run, ours, against, theirs)
    return Against(against, ours, theirs, pair, read_examples(store, "eval"))


def build_against(against: Against, links: Links) -> Element:
    """Return the paired test, and the tasks that were lost and gained by name."""
    pair, title = against.pair, "Against another run"
    if pair is None:
        text = f"No task was measured by this run and by {against.label}."
        return make_section(title, make("p", text, class_="none"))
    low, high = pair.interval
    text = (
        f"Of {format_quantity(pair.tasks, 'task')} that {against.label} measured, too, the mean "
        f"solve rate differs by {100 * pair.difference:+.1f} points (95 %: {100 * low:+.1f} to "
        f"{100 * high:+.1f}; p = {pair.p:.2g}, a paired permutation test). A task counts as solved "
        "if most of its rollouts solve it."
    )
    return make_section(
        title,
        make("p", text),
        _list("Solved there and not here", pair.lost, against, links),
        _list("Solved here and not there", pair.gained, against, links),
    )


def _list(title: str, names: list[str], against: Against, links: Links) -> Element:
    if not names:
        return make("p", f"{title}: none", class_="dim")
    rows: list[list[Child]] = [
        [
            make("code", name, class_="name"),
            _count(against.theirs[name]),
            _count(against.ours[name]),
            links.to(against.examples[name]) if name in against.examples else None,
        ]
        for name in names
    ]
    table = make_table(["task", "solved there", "here", "for example"], rows, numbers=(1, 2))
    folded = make_details(f"{title}: {len(names):,}", table)
    if len(names) <= _FEW:
        folded.set("open", "open")
    return folded


def _count(verdicts: Verdicts) -> str:
    return f"{format_count(verdicts.solved)} of {format_count(verdicts.graded)}"
