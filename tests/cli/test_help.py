"""Help and ``show``: their output, and the modules that they may not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import get_type_hints

import pytest

from conf.compose import compose
from tests.cli.conftest import ENVIRONMENT, Agentrl

Golden = Callable[[str, str], None]
Helps = dict[str, tuple[str, set[str]]]

COMMANDS = (
    *("run", "check", "eval", "launch", "regrade", "replay", "show", "status", "dump-trajectories"),
    *(
        "gateway",
        "stop",
        "watch",
        "report",
        "compare",
        "tasks",
        "referee",
        "rollouts",
        "view",
        "what-if",
        "completion",
    ),
)

HEAVY = {
    *("torch", "transformers", "hydra", "omegaconf", "numpy", "aiohttp", "renderers"),
    *("runners", "launch"),
}


PRINT_ALL = """
import contextlib, io, json, sys
from cli.main import main

for words in ([], *([command] for command in sys.argv[1:])):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    modules = {name.partition(".")[0] for name in sys.modules}
    print(json.dumps([text.getvalue(), sorted(modules)]))
"""
"""Prints each command's help, and the modules that the process has imported until then."""


@pytest.fixture(scope="module")
def helps() -> Helps:
    """Return the help of every command, ``""`` for the first page, and what it imports."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_ALL, *COMMANDS],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        name: (text, set(modules))
        for name, (text, modules) in zip(("", *COMMANDS), printed, strict=True)
    }


def test_help_is_unchanged_and_imports_nothing_heavy(helps: Helps, golden: Golden) -> None:
    text, modules = helps[""]
    golden("help.txt", text)
    assert {"typer", "cli"} <= modules
    assert not modules & (HEAVY | {"pydantic", "asyncio"})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_unchanged_and_imports_nothing_heavy(
    helps: Helps, golden: Golden, command: str
) -> None:
    text, modules = helps[command]
    golden(f"help-{command}.txt", text)
    assert not modules & HEAVY


def test_show_is_unchanged(agentrl: Agentrl, golden: Golden) -> None:
    golden("show.txt", agentrl("show").stdout)


def test_show_json_is_the_resolved_configuration(agentrl: Agentrl) -> None:
    done = agentrl(
        "show", "seed=3", "model=tiny", "engine=sglang", "engine.url=http://h:1", "--json"
    )
    wanted = compose(["seed=3", "model=tiny", "engine=sglang", "engine.url=http://h:1"])
    assert json.loads(done.stdout) == wanted.model_dump(mode="json")
    assert done.stderr == ""


def test_the_help_of_only_names_every_kind_that_the_export_knows() -> None:
    from cli.dump import dump_trajectories
    from runners.observe.export.run_dump import ONLY

    option = get_type_hints(dump_trajectories, include_extras=True)["only"].__metadata__[0]
    *first, last = ONLY
    assert f"{', '.join(first)} or {last}" in option.help


def test_the_help_of_eval_names_every_benchmark() -> None:
    from cli.eval import evaluate
    from runners.campaigns.evaluation.benchmarks import BENCHMARKS

    argument = get_type_hints(evaluate, include_extras=True)["benchmark"].__metadata__[0]
    assert argument.help == f"What to measure: {', '.join(BENCHMARKS)}."


@pytest.mark.parametrize("word", ["scenario", "scenario.kind"])
def test_show_lists_a_groups_choices_and_its_own(agentrl: Agentrl, word: str) -> None:
    shown = agentrl("show", word).stdout.splitlines()
    assert shown[0] == "scenario= compact, linear, mixed, subagent; linear is chosen"
    assert shown[1].startswith("scenario.window_tokens")


def test_show_describes_a_key(agentrl: Agentrl) -> None:
    done = agentrl("show", "sampling.temperature", "--json")
    (entry,) = json.loads(done.stdout)["keys"]
    assert entry["type"] == "number, above 0, at most 10"
    assert entry["default"] == "1.0"
    assert {"value", "origin", "page"} <= set(entry)
    assert entry["comment"].startswith("Sampling temperature in training.")
    wrong = agentrl("show", "trainer.lerning_rate")
    assert wrong.code == 2
    assert "did you mean trainer.learning_rate?" in wrong.stderr
