"""``agentrl replay``: run an agent program again with the policy's recorded answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import Json, Overrides, RunDir, examples

if TYPE_CHECKING:
    from rich.table import Table

    from runners.campaigns.replay import ReplayResult

EXAMPLES = examples(
    "agentrl replay runs/20260101-120000-linear --rollout train-000002-001-03",
    "agentrl replay runs/20260101-120000-linear --rollout train-000002-001-03 "
    "harness.version=2.1.329",
)


def replay(
    run: RunDir,
    rollout: Annotated[
        str,
        typer.Option(
            metavar="ROLLOUT",
            help="A rollout (meaning its final attempt), or an attempt: ROLLOUT-a0.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Replay a stored rollout: the real agent program, the recorded answers.

    Shows the first request that differs from the recorded one. KEY=VALUE changes the run's
    configuration for the replay, e.g. to another version of the program; the run is only read. Exit
    code 1: a request differs.
    """
    from cli.invocation import print_json, stderr, stdout
    from runners.campaigns.replay import replay as drive_again

    with stderr().status(f"{rollout}: the agent program works…"):
        result = drive_again(run, rollout, overrides or [])
    if as_json:
        print_json(result.to_dict())
    else:
        stdout().print(_table(result))
    raise typer.Exit(int(result.exit_code))


def _table(result: ReplayResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    versions = " → ".join(dict.fromkeys(str(v) for v in result.version.values() if v))
    table.add_row("agent program", f"{result.harness} {versions}".strip())
    table.add_row("turns", f"{result.turns['recorded']} recorded, {result.turns['replayed']} now")
    table.add_row("outcome", f"{result.outcome['recorded']}, now {result.outcome['replayed']}")
    if not result.differences:
        table.add_row("requests", "all are the recorded ones")
        return table
    first, more = result.differences[0], len(result.differences) - 1
    where = f"turn {first.turn} of thread {first.thread} ({first.branch})"
    if first.thread is None:
        where = "a thread that was not recorded"
    what = first.what if first.message is None else f"new message {first.message} ({first.role})"
    table.add_row("first difference", Text(f"{where}: {what}"))
    table.add_row("recorded", Text(first.recorded))
    table.add_row("now", Text(first.replayed))
    if more:
        table.add_row("", f"{more} more: --json shows them")
    return table
