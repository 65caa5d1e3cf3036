"""``agentrl rollouts``: list a run's rollouts in the terminal, or show one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import (
    ROLLOUT_KINDS,
    Json,
    MinReward,
    RunDir,
    Steps,
    TaskIds,
    examples,
)

if TYPE_CHECKING:
    from runners.records.store import RunStore

EXAMPLES = examples(
    "agentrl rollouts runs/20260101-120000-mixed --only unsolved --sort=-turns",
    "agentrl rollouts runs/20260101-120000-mixed --search 'KeyError tests:test_sum'",
    "agentrl rollouts runs/20260101-120000-mixed train-000003-002-05",
)
_LINES = 40
"""Lines of one text that are shown without --full."""


_PAGE = 50
"""Lines of the list without --limit."""

Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND",
        help=f"Only these: {ROLLOUT_KINDS}; running: in progress. Can be repeated.",
        show_default=False,
    ),
]
Group = Annotated[
    str | None,
    typer.Option(metavar="N", help="Only this group of the steps.", show_default=False),
]
Outcome = Annotated[
    str | None,
    typer.Option(
        metavar="CODE",
        help="Only this outcome (budget.wall) or class of outcomes (infra).",
        show_default=False,
    ),
]
BranchKind = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Only those with such a branch: subagent, compaction, side, wipe or edit.",
        show_default=False,
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS",
        help="Only those in which one message, call, patch or test log has these words; "
        "said:, tools:, patch: or tests: before a word searches there alone.",
        show_default=False,
    ),
]
Sort = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        help="run, task, outcome, reward, advantage, turns, tokens or duration; "
        "--sort=-KEY: descending.",
    ),
]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=500, help="List at most so many.")]
Offset = Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first.")]
RolloutId = Annotated[
    str | None,
    typer.Argument(
        metavar="ROLLOUT",
        help="Show this one: its branches, conversation, tests and patch.",
        show_default=False,
    ),
]
Chain = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Of ROLLOUT: show this branch's conversation.", show_default=False
    ),
]
Wire = Annotated[
    int | None,
    typer.Option(
        metavar="TURN",
        help="Of ROLLOUT: show this turn's request and answer as they were on the wire "
        "(gateway.record_wire).",
        show_default=False,
    ),
]
Timeline = Annotated[
    bool,
    typer.Option("--timeline", help="Of ROLLOUT: show what happened when, over all its branches."),
]
Full = Annotated[bool, typer.Option("--full", help="Of ROLLOUT: show long texts whole.")]


def rollouts(
    run: RunDir,
    rollout: RolloutId = None,
    only: Only = None,
    task: TaskIds = None,
    step: Steps = None,
    group: Group = None,
    outcome: Outcome = None,
    kind: BranchKind = None,
    min_reward: MinReward = None,
    search: Search = None,
    sort: Sort = "run",
    limit: Limit = _PAGE,
    offset: Offset = 0,
    chain: Chain = None,
    full: Full = False,
    wire: Wire = None,
    timeline: Timeline = False,
    as_json: Json = False,
) -> None:
    """List the rollouts of a run, running or ended, or show one; the run is only read."""
    from cli.invocation import print_json, stdout
    from runners.observe.export import require_known
    from runners.observe.viewer import (
        RolloutList,
        RolloutQuery,
        ViewError,
        find_in_progress,
        list_rollouts,
        parse_query,
    )
    from runners.records.store import RunStore

    least = None if min_reward is None else str(min_reward)
    query = parse_query(
        {
            **{"only": only, "task": task, "step": step, "group": group, "outcome": outcome},
            **{"kind": kind, "min_reward": least, "search": search, "sort": sort},
        }
    )
    if rollout is None and (chain is not None or full or wire is not None or timeline):
        raise ViewError(
            "--chain, --full, --wire and --timeline are of one rollout: name it, or drop them"
        )
    if timeline and (chain is not None or full or wire is not None):
        raise ViewError("--timeline has all branches, a line each: drop --chain, --full and --wire")
    if wire is not None and (chain is not None or full):
        raise ViewError("--wire shows one turn, whole: drop --chain and --full")
    if rollout is not None and (query != RolloutQuery() or (limit, offset) != (_PAGE, 0)):
        raise ViewError(f"filters and pages are of the list: drop them, or drop {rollout}")
    if as_json and (chain is not None or full):
        raise ViewError("--json has every branch and whole texts: drop --chain and --full, or it")
    with RunStore.open(run, read_only=True) as store:
        if rollout is not None and wire is not None:
            _show_wire(store, rollout, wire, as_json=as_json)
            return
        if rollout is not None and timeline:
            _show_timeline(store, rollout, as_json=as_json)
            return
        if rollout is not None:
            _show(store, rollout, chain, full=full, as_json=as_json)
            return
        if not query.running:
            require_known(store, tasks=query.task, steps=query.steps, group=query.group)
        if query.search:
            _index(run, store)
        listing = list_rollouts(store, query, offset, limit)
        others = 0 if query.running or as_json else len(find_in_progress(store))
    if as_json:
        print_json({"sums": listing.sums, "rollouts": listing.rows})
    else:
        stdout().print(RolloutList(listing, others))


def _show(store: RunStore, rollout: str, chain: int | None, *, full: bool, as_json: bool) -> None:
    from cli.invocation import print_json, stdout
    from runners.observe.viewer import ViewError, open_rollout, render_rollout

    view = open_rollout(store, rollout)
    chains = [each.index for each in view.exported.chains]
    if chain is not None and chain not in chains:
        raise ViewError(f"--chain {chain}: {rollout} has {len(chains)} branches, from 0 on")
    if as_json:
        print_json({**view.exported.trajectory, "attempts": view.attempts})
    else:
        for part in render_rollout(view, chain, None if full else _LINES):
            stdout().print(part, soft_wrap=False)


def _show_timeline(store: RunStore, rollout: str, *, as_json: bool) -> None:
    from cli.invocation import print_json, stdout
    from runners.observe.viewer import (
        build_timeline,
        open_rollout,
        render_timeline,
        timeline_to_page,
    )

    moments = build_timeline(store, open_rollout(store, rollout))
    if as_json:
        print_json(timeline_to_page(moments))
    else:
        stdout().print(render_timeline(moments))


def _show_wire(store: RunStore, rollout: str, turn: int, *, as_json: bool) -> None:
    from cli.invocation import print_json, stdout
    from runners.observe.viewer import find_wire, render_wire, wire_to_dict

    found = find_wire(store, rollout, turn)
    if as_json:
        print_json(wire_to_dict(found))
    else:
        stdout().print(render_wire(found), soft_wrap=True)


def _index(run: Path, store: RunStore) -> None:
    """Bring the search index up to date, and attach it to the store."""
    from cli.invocation import stderr
    from runners.observe.viewer import SearchIndex

    index = SearchIndex(run)
    with stderr().status("reading the texts…") as status:
        index.update(lambda now: status.update(f"reading the texts… {now.done:,} of {now.total:,}"))
    index.attach(store)
