"""Help and ``show``: what they print, and how little they import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from cli.dump import Only
from conf.compose import compose
from tests.cli.conftest import REPOSITORY, Agentrl

Golden = Callable[[str, str], None]

COMMANDS = ("run", "show", "status", "dump-trajectories", "gateway")

HEAVY = {"torch", "transformers", "hydra", "omegaconf", "numpy", "aiohttp", "renderers", "asyncio"}


@pytest.mark.parametrize("arguments", [["--help"], *([c, "--help"] for c in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import json, sys\n"
        "from cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert "typer" in modules
    assert not modules & (HEAVY | {"runners", "launch"})
    assert arguments != ["--help"] or "pydantic" not in modules  # a command's help: typer needs it


def test_help_is_as_agreed(agentrl: Agentrl, golden: Golden) -> None:
    golden("help.txt", agentrl("--help").stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_as_agreed(agentrl: Agentrl, golden: Golden, command: str) -> None:
    golden(f"help-{command}.txt", agentrl(command, "--help").stdout)


def test_show_is_as_agreed(agentrl: Agentrl, golden: Golden) -> None:
    golden("show.txt", agentrl("show").stdout)


def test_show_json_is_the_resolved_configuration(agentrl: Agentrl) -> None:
    done = agentrl("show", "seed=3", "engine=sglang", "engine.url=http://h:1", "--json")
    wanted = compose(["seed=3", "engine=sglang", "engine.url=http://h:1"])
    assert json.loads(done.stdout) == wanted.model_dump(mode="json")
    assert done.stderr == ""


def test_only_offers_what_the_export_knows() -> None:
    from runners.trajectory.dump import ONLY

    assert [choice.value for choice in Only] == list(ONLY)
