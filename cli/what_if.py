"""``agentrl what-if``: a run's stored rollouts under other rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.arguments import Json, Overrides, RunDir, examples

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from runners.campaigns.what_if import RuleFigures, WhatIf

EXAMPLES = examples(
    "agentrl what-if runs/20260101-120000-mixed fanout=collapse",
    "agentrl what-if runs/20260101-120000-mixed trainer.advantage=rloo reward.turn_penalty=0.1",
    "agentrl what-if runs/20260101-120000-mixed",
)


def what_if(run: RunDir, overrides: Overrides = None, as_json: Json = False) -> None:
    """Compute a run's training signal again under other rules, from its store alone.

    KEY=VALUE may change fanout, reward, the advantages' keys of trainer and rollout.replace_flat;
    the rollouts stay those that were sampled. Without any, the run is checked. Of each step: mean
    reward, groups with a gradient, trained tokens, their shares that are made likelier (up) and
    less likely (down), the sum of weight × |advantage| over them (pull), and the rollouts whose
    advantage has another sign (turned). Exit code 1: what is stored does not follow from the store
    under the run's own rules, or the other rules failed and leave nothing to train.
    """
    import gc

    from cli.invocation import print_json, stdout

    # Modules, records and samples have no cycles that would grow: each step's go with their names.
    gc.disable()
    try:
        found = _ask(run, overrides or [])
    finally:
        gc.enable()
    if as_json:
        print_json(found.to_dict())
    else:
        stdout().print(_render(found))
    raise typer.Exit(int(found.exit_code))


def _ask(run: Path, overrides: list[str]) -> WhatIf:
    from cli.invocation import stderr
    from runners.campaigns.what_if import ask_what_if

    with stderr().status("reading the rollouts…") as status:
        return ask_what_if(
            run, overrides, lambda step: status.update(f"computing step {step:,} again…")
        )


def _render(found: WhatIf) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from runners.records.text import make_printable

    # Two spaces between columns: millions of tokens in a thousand groups fit into 80 columns.
    table = Table(
        box=SIMPLE_HEAD,
        title="what if",
        title_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name in ("step", "rules"):
        table.add_column(name, no_wrap=True)
    for name in ("reward", "groups", "tokens", "up", "down", "pull", "turned"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found.steps:
        _add_rows(table, str(each.step), each.before, each.after, len(each.turned))
    if len(found.steps) > 1:
        turned = sum(len(each.turned) for each in found.steps)
        table.add_section()
        _add_rows(table, "all", *found.total, turned)
    changed = [
        Text(make_printable(f"{key}: {old} → {new}"))
        for key, (old, new) in found.changed.items()
        if not (old is None or new is None) or len(found.changed) == 1
    ]
    notes = (Text(make_printable(line)) for line in _describe(found))
    return Group(*changed, table, Text(), *notes)


def _add_rows(
    table: Table, step: str, before: RuleFigures, after: RuleFigures, turned: int
) -> None:
    """Add the figures under the run's own rules and, where they differ, under the others."""
    own, other = _cells(before), _cells(after)
    if own == other and not turned:
        table.add_row(step, "both", *own, "0")
        return
    table.add_row(step, "own", *own)
    table.add_row("", "other", *other, f"{turned:,}")


def _cells(figures: RuleFigures) -> list[str]:
    from runners.observe.report import format_share, format_significant

    return [
        format_significant(figures.reward_mean),
        f"{figures.groups_with_gradient:,}/{figures.groups:,}",
        f"{figures.tokens_trained:,}",
        format_share(figures.share_up),
        format_share(figures.share_down),
        format_significant(figures.weight_up + figures.weight_down),
    ]


def _describe(found: WhatIf) -> Iterator[str]:
    """Yield what a reader has to know about the figures."""
    from runners.observe.report import format_quantity

    rollouts = format_quantity(found.total[0].rollouts, "rollout")
    if found.not_reproduced:
        yield (
            f"{len(found.not_reproduced):,} of {rollouts} are stored otherwise than today's code "
            f"computes them under the run's own rules, the first {found.not_reproduced[0]}"
        )
    else:
        yield f"the run's own rules reproduce what is stored of {rollouts}, bit for bit"
    if found.rewards_unchecked:
        yield "rewards are taken as stored: the run's own reward.target was not called again"
    if found.reward_saw_less:
        yield "reward.target saw the stored verdicts, which do not name every test"
    if found.failures:
        name, reason = next(iter(found.failures.items()))
        many = format_quantity(len(found.failures), "failure")
        yield f"{many}, the first of {name}: {reason}"
