"""``agentrl rollouts``: list a run's rollouts in the terminal, or show one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import Json, RunDir, examples

if TYPE_CHECKING:
    from runners.store.run_store import RunStore
    from runners.viewer.filters import RolloutQuery

EXAMPLES = examples(
    "agentrl rollouts runs/20260101-120000-mixed --only unsolved --sort=-turns",
    "agentrl rollouts runs/20260101-120000-mixed --search 'KeyError tests:test_sum'",
    "agentrl rollouts runs/20260101-120000-mixed train-000003-002-05",
)
_LINES = 40
"""Lines of one text that are shown without --full."""


def rollouts(
    run: RunDir,
    rollout: Annotated[
        str | None,
        typer.Argument(
            metavar="ROLLOUT",
            help="Show this one: its branches, conversation, tests and patch.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Only these: train, eval, solved, unsolved or failed (without a grade). "
            "Can be repeated.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Only this task; * and ? are wildcards. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="N|N-M", help="Only this step, or this range of steps.", show_default=False
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="N", help="Only this group of the steps.", show_default=False),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Only this outcome (budget.wall) or class of outcomes (infra).",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Only those with such a branch: subagent, compaction, side or wipe.",
            show_default=False,
        ),
    ] = None,
    min_reward: Annotated[
        str | None,
        typer.Option(
            metavar="X", help="Only rollouts with at least this reward.", show_default=False
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="Only those in which one message, call, patch or test log has these words; "
            "said:, tools:, patch: or tests: before a word searches there alone.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="run, task, outcome, reward, advantage, turns, tokens or duration; "
            "--sort=-KEY: descending.",
        ),
    ] = "run",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=500, help="List at most so many.")
    ] = 50,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first.")] = 0,
    chain: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of ROLLOUT: show this branch's conversation.", show_default=False
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Of ROLLOUT: show long texts whole.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the rollouts of a run, running or ended, or show one; the run is only read."""
    from cli.invocation import print_json, stdout
    from runners.store.run_store import RunStore
    from runners.viewer.filters import parse_query
    from runners.viewer.listing import list_rollouts
    from runners.viewer.terminal import RolloutList

    query = parse_query(
        {
            **{"only": only, "task": task, "step": step, "group": group, "outcome": outcome},
            **{"kind": kind, "min_reward": min_reward, "search": search, "sort": sort},
        }
    )
    with RunStore.open(run, read_only=True) as store:
        if rollout is not None:
            _show(store, rollout, query, chain, full=full, as_json=as_json)
            return
        if query.search:
            _index(run, store)
        listing = list_rollouts(store, query, offset, limit)
    if as_json:
        print_json({"sums": listing.sums, "rollouts": listing.rows})
    else:
        stdout().print(RolloutList(listing))


def _show(
    store: RunStore,
    rollout: str,
    query: RolloutQuery,
    chain: int | None,
    *,
    full: bool,
    as_json: bool,
) -> None:
    from cli.invocation import print_json, stdout
    from runners.viewer.filters import RolloutQuery, ViewError
    from runners.viewer.rollout_view import open_rollout
    from runners.viewer.terminal import render_rollout

    if query != RolloutQuery():
        raise ViewError(f"filters are of the list: drop them, or drop {rollout}")
    view = open_rollout(store, rollout)
    chains = [each.index for each in view.exported.chains]
    if chain is not None and chain not in chains:
        raise ViewError(f"--chain {chain}: {rollout} has {len(chains)} branches, from 0 on")
    if as_json:
        print_json({**view.exported.trajectory, "attempts": view.attempts})
    else:
        stdout().print(render_rollout(view, chain, None if full else _LINES), soft_wrap=False)


def _index(run: Path, store: RunStore) -> None:
    """Bring the search index up to date, and attach it to the store."""
    from cli.invocation import stderr
    from runners.viewer.search_index import SearchIndex

    index = SearchIndex(run)
    with stderr().status("reading the texts…") as status:
        index.update(lambda now: status.update(f"reading the texts… {now.done:,} of {now.total:,}"))
    index.attach(store)
