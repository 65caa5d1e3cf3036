"""Help and ``show``: their output, and the modules that they may not import."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import get_type_hints

import pytest

from conf.compose import compose
from tests.cli.conftest import Agentrl

Golden = Callable[[str, str], None]

COMMANDS = (
    *("run", "check", "eval", "launch", "regrade", "replay", "show", "status", "dump-trajectories"),
    *(
        "gateway",
        "stop",
        "watch",
        "report",
        "compare",
        "tasks",
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


def imported(importtime: str) -> set[str]:
    """Return the top-level modules in what ``-X importtime`` printed."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in importtime.splitlines()}


def test_help_is_unchanged_and_imports_nothing_heavy(
    agentrl_process: Agentrl, golden: Golden
) -> None:
    done = agentrl_process("--help", options=("-X", "importtime"))
    golden("help.txt", done.stdout)
    assert {"typer", "cli"} <= imported(done.stderr)
    assert not imported(done.stderr) & (HEAVY | {"pydantic", "asyncio"})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_unchanged_and_imports_nothing_heavy(
    agentrl_process: Agentrl, golden: Golden, command: str
) -> None:
    done = agentrl_process(command, "--help", options=("-X", "importtime"))
    golden(f"help-{command}.txt", done.stdout)
    assert not imported(done.stderr) & HEAVY


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
    from runners.export.dump import ONLY

    option = get_type_hints(dump_trajectories, include_extras=True)["only"].__metadata__[0]
    *first, last = ONLY
    assert f"{', '.join(first)} or {last}" in option.help


def test_the_help_of_eval_names_every_benchmark() -> None:
    from cli.eval import evaluate
    from runners.evaluation.benchmarks import BENCHMARKS

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
