"""``agentrl show``: print the resolved configuration."""

from __future__ import annotations

from cli.arguments import Json, Overrides, examples

EXAMPLES = examples(
    "agentrl show",
    "agentrl show engine=sglang engine.url=http://127.0.0.1:30000 --json > my.json",
)


def show(overrides: Overrides = None, as_json: Json = False) -> None:
    """Show the whole configuration with KEY=VALUE…, checked."""
    import sys

    from conf.compose import compose, to_json, to_yaml

    config = compose(overrides or [])
    sys.stdout.write(to_json(config) if as_json else to_yaml(config))
