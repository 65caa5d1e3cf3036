"""``agentrl show``: the resolved configuration."""

from __future__ import annotations

import typer

from cli.arguments import Json, Overrides, examples

EXAMPLES = examples(
    "agentrl show",
    "agentrl show engine=sglang engine.url=http://127.0.0.1:30000 --json > my.json",
)


def show(context: typer.Context, overrides: Overrides = None, as_json: Json = False) -> None:
    """Show the configuration that KEY=VALUE… make, checked."""
    context.obj.json = as_json
    import sys

    from conf.compose import compose, to_json, to_yaml

    config = compose(overrides or [])
    sys.stdout.write(to_json(config) if as_json else to_yaml(config))
