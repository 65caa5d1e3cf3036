"""``agentrl show``: print the resolved configuration, or describe a key of it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import ConfigDir, Json, examples, split_command

EXAMPLES = examples(
    "agentrl show",
    "agentrl show trainer.learning_rate",
    "agentrl show engine.url engine=sglang",
    "agentrl show harness=claude_code model=qwen3_30b_a3b --json > my.json",
    "agentrl show eval swebench harness=claude_code",
    "agentrl show --matrix harness=claude_code,codex",
)


def show(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY | run | eval BENCHMARK] [KEY=VALUE]",
            help="A key, group or section to describe; or the command that is meant (a campaign, "
            "if none is named) and its arguments.",
            show_default=False,
        ),
    ] = None,
    _config_dir: ConfigDir = None,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Show the numbers that decide (window, tokens per turn, turns, deadline, reward) "
            "for every agent program, model and launcher, or for those of harness=…, model=…, "
            "launch=….",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the whole configuration with KEY=VALUE…, checked, and where each value comes from.

    With KEY: its type, default, choices, comment, value here, and the page that explains it.
    """
    import sys

    from cli.key_view import is_key

    if overrides and is_key(overrides[0]) and not matrix:
        from cli.key_view import show_key

        show_key(overrides[0], overrides[1:], as_json=as_json)
        return

    if matrix:
        from cli.matrix import show_matrix

        show_matrix(overrides or [], as_json=as_json)
        return

    from cli.invocation import json_stream
    from conf.compose import compose_with_origins, to_json, to_yaml
    from conf.exact_tokens import describe_inexactness
    from runners.observe.console import report_warning

    config, origins = compose_with_origins(split_command(overrides or [])[1])
    if (inexact := describe_inexactness(config)) is not None:
        report_warning(inexact)
    if as_json:
        json_stream().write(to_json(config))
    else:
        sys.stdout.write(to_yaml(config, origins))
