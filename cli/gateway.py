"""``agentrl gateway``: the gateway alone, for any agent and any engine."""

from __future__ import annotations

import typer

from cli.arguments import Overrides, examples

EXAMPLES = examples(
    "agentrl gateway engine=sglang engine.url=http://127.0.0.1:30000 model=local "
    "model.tokenizer=DIR model.renderer=qwen3",
)


def gateway(context: typer.Context, overrides: Overrides = None) -> None:
    """Serve the gateway alone: attach any agent to any engine, and record every turn.

    The first line on stdout is JSON with url and admin_key; ctrl-C ends it.
    """
