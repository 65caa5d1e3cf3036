"""``agentrl plugins``: list the seams, and what is plugged in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cli.arguments import CommandAndOverrides, ConfigDir, Json, examples, split_command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from conf.sections.plugin import PluginConfig
    from runners.campaigns.preflight.plugins import OfferedPlugin, Seam

EXAMPLES = examples(
    "agentrl plugins",
    "agentrl plugins reward=mine",
    "agentrl plugins reward=custom reward.target=my_rewards.py:Brief reward.options.weight=0.5",
)


def plugins(
    overrides: CommandAndOverrides = None, _config_dir: ConfigDir = None, as_json: Json = False
) -> None:
    """List the seams for code of your own; load and check what KEY=VALUE… chooses."""
    from cli.invocation import print_json, stdout
    from conf.compose import compose
    from runners.campaigns.execution import refuse_start
    from runners.campaigns.preflight.plugins import (
        find_plugin_errors,
        find_plugins,
        list_offered,
        list_seams,
    )

    config = compose(split_command(overrides or [])[1])
    refuse_start([], list(find_plugin_errors(config)))
    offered = list_offered()
    chosen = {key: plugin for key, (plugin, _) in find_plugins(config).items()}
    if as_json:
        print_json(
            {
                "seams": [
                    {"name": s.name, "key": s.key, "builtin": s.builtin, "runs": s.runs}
                    for s in list_seams()
                ],
                "offered": [asdict(each) for each in offered],
                "chosen": {key: plugin.model_dump(mode="json") for key, plugin in chosen.items()},
            }
        )
        return
    stdout().print(_render_seams(list_seams()))
    stdout().print(_render_plugins(offered, chosen))


def _render_seams(seams: Sequence[Seam]) -> RenderableType:
    """Return the seams, each with its key and what is built in."""
    from rich.table import Table

    table = Table(title="seams", title_justify="left")
    for column in ("key", "built in", "code of your own runs in"):
        table.add_column(column)
    for seam in seams:
        table.add_row(seam.key, ", ".join(seam.builtin), seam.runs)
    return table


def _render_plugins(
    offered: Sequence[OfferedPlugin], chosen: Mapping[str, PluginConfig]
) -> RenderableType:
    """Return the plug-ins that packages offer, and those that a configuration chooses."""
    from rich.table import Table
    from rich.text import Text

    if not offered and not chosen:
        return Text("nothing is plugged in: docs/extending.md says how")
    table = Table(title="plug-ins", title_justify="left")
    for column in ("for", "name", "target", "version"):
        table.add_column(column, overflow="fold")
    for each in offered:
        state = each.version or "not there: its package is broken"
        if each.shadowed:
            state = "not reached by its name, which is built in: choose it by its target"
        table.add_row(each.seam, each.name, each.target, state)
    for key, plugin in chosen.items():
        table.add_row(f"{key}=", "chosen", plugin.target, plugin.version or "unknown")
    return table
