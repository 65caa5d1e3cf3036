"""The end of ``agentrl gateway --once``: the trajectory of its one session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runners.observe.export import ExportedRollout


def read_rollout(run_dir: Path) -> ExportedRollout:
    """Return the rollout of the run's one session."""
    from runners.observe.export import ExportedRun, build_trajectory
    from runners.records.store import RunStore
    from runners.services.gateway_alone import SESSION

    with RunStore.open(run_dir, read_only=True) as store:
        record = store.rollout(SESSION)
        assert record is not None  # its gateway has kept it, however it ended
        run = ExportedRun(run_dir.resolve().name, store.config(), None, store.routing_shape())
        return build_trajectory(record, store.turns(record.session_id), run)


def write_record(rollout: ExportedRollout, out: Path) -> None:
    """Write the rollout as a line of ``trajectories.jsonl``; raises DumpError."""
    from runners.observe.export import to_dump_error
    from runners.records.text import dumps

    try:
        out.write_bytes(dumps(rollout.trajectory).encode() + b"\n")
    except OSError as error:
        raise to_dump_error(error, out) from error


def describe_rollout(rollout: ExportedRollout) -> dict[str, Any]:
    """Return the rollout in short: its chains with their tokens, and its false breaks."""
    record, turns = rollout.record, rollout.turns
    chains = []
    for chain in rollout.chains:
        sampled = sum(turns[index].output_tokens for index in chain.own_turns)
        trained = int(chain.loss_mask.sum())
        chains.append(
            {
                "index": chain.index,
                "kind": chain.kind,
                "thread": chain.thread,
                "turns": len(chain.own_turns),
                "sampled": sampled,
                "trained": trained,
                "masked": max(0, sampled - trained),
            }
        )
    breaks = record.extra["session"]["breaks"]
    return {
        "outcome": record.outcome.code,
        "message": record.outcome.message,
        "turns": record.turns,
        "sampled_tokens": record.sampled_tokens,
        "segments": chains,
        "false_breaks": [each for each in breaks if each["kind"] != "compaction"],
    }


def render_rollout(short: dict[str, Any]) -> RenderableType:
    """Return what ``describe_rollout`` returns as a table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from runners.records.text import make_printable

    title = f"{short['outcome']}: {short['message']}".removesuffix(": ")
    table = Table(title=make_printable(title), title_justify="left")
    for column in ("branch", "thread"):
        table.add_column(column, overflow="fold")
    for column in ("turns", "tokens sampled", "trained", "masked"):
        table.add_column(column, justify="right")
    for chain in short["segments"]:
        numbers = (f"{chain[name]:,}" for name in ("turns", "sampled", "trained", "masked"))
        table.add_row(chain["kind"], Text(make_printable(chain["thread"])), *numbers)
    lines = [
        f"turn {each['turn']} of {each['thread']}: {each['kind']}: {each['reason']}"
        for each in short["false_breaks"]
    ]
    count = Text(f"false breaks: {len(lines)}")
    return Group(table, count, *(Text(f"  {make_printable(line)}") for line in lines))
