"""Builds the section of a report that compares its run with another one, task by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

from runners.report.comparison_tasks import list_flips
from runners.report.element import Child, make
from runners.report.links import Links
from runners.report.number_format import format_part, format_quantity
from runners.report.paired import PairedResult, Verdicts, compare_tasks, read_verdicts
from runners.report.table import make_section
from runners.store.run_store import RunStore


@dataclass(frozen=True, slots=True)
class Against:
    """A run beside another one, by their last evaluations."""

    label: str
    """Of the other run."""
    ours: Mapping[str, Verdicts]
    theirs: Mapping[str, Verdicts]
    pair: PairedResult | None
    """None: no task was measured by both."""


def read_against(run_dir: Path, other_dir: Path) -> Against:
    """Compare the run in ``run_dir`` with that in ``other_dir``; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        ours = read_verdicts(store)
    with RunStore.open(other_dir, read_only=True) as store:
        theirs = read_verdicts(store)
    run, against = run_dir.resolve().name, other_dir.resolve().name
    if run == against:
        run, against = str(run_dir), str(other_dir)
    return Against(against, ours, theirs, compare_tasks(run, ours, against, theirs))


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
            links.to(against.ours[name].example),
        ]
        for name in names
    ]
    return list_flips(title, ["task", "solved there", "here", "for example"], rows)


def _count(verdicts: Verdicts) -> str:
    return format_part(verdicts.solved, verdicts.graded)
