"""``agentrl check harness=NAME@VERSION``: what another version of an agent program changes, against
the package's recording of it or a run of the user's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from cli.invocation import print_json, stderr, stdout

if TYPE_CHECKING:
    from rich.table import Table

    from runners.campaigns.replay import UpgradeReport


def compare_versions(run: Path, overrides: list[str], *, as_json: bool) -> NoReturn:
    """Replay rollouts of a run, show what differs, and exit; raises AgentrlError."""
    from runners.campaigns.replay import compare_version

    with stderr().status("reading the run…") as status:
        report = compare_version(run, overrides, status.update)
    _end_with(report, as_json=as_json)


def compare_with_recordings(overrides: list[str], *, as_json: bool) -> None:
    """Replay the recording of a program that the package brings, show what differs, and exit.

    Does nothing unless a version of such a program is chosen, and nothing else. Raises
    AgentrlError.
    """
    from runners.campaigns.replay import compare_with_recording, find_recording

    if len(overrides) != 1 or (recording := find_recording(overrides[0])) is None:
        return
    with stderr().status("reading the recording…") as status:
        report = compare_with_recording(overrides[0], recording, status.update)
    _end_with(report, as_json=as_json)


def _end_with(report: UpgradeReport, *, as_json: bool) -> NoReturn:
    if as_json:
        print_json(report.to_dict())
    else:
        stdout().print(_table(report))
    raise typer.Exit(int(report.exit_code))


def _table(report: UpgradeReport) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_row("agent program", f"{report.harness} {' → '.join(report.versions())}".strip())
    turns = sum(each.turns["recorded"] for each in report.replays)
    table.add_row("replayed", f"{len(report.replays)} rollouts with {turns} turns")
    changes = ", ".join(f"{what} {n}" for what, n in report.changes().items())
    table.add_row("requests that differ", changes or "none")
    first = next((each for each in report.replays if each.differences), None)
    if first is not None:
        found = first.differences[0]
        table.add_row("first", f"{found.what}, turn {found.index} of {first.rollout_id}")
        table.add_row("  recorded", Text(found.recorded))
        table.add_row("  now", Text(found.replayed))
    moved = ", ".join(f"{n} turns {what}" for what, n in report.moved().items())
    table.add_row("branches that move", moved or "none")
    chains = (
        f"{kind} {was}" if was == now else f"{kind} {was} → {now}"
        for kind, (was, now) in report.chains().items()
    )
    table.add_row("chains", ", ".join(chains))
    share = report.lost / report.recorded if report.recorded else 0.0
    table.add_row(
        "training signal", f"{report.lost:,} of {report.recorded:,} tokens lost ({share:.1%})"
    )
    return table
