"""``agentrl replay`` and ``check --against``: differences and exit codes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from conf.compose import compose
from tests.cli.conftest import Agentrl
from tests.runners.campaigns.replay.recorded_rollout import ROLLOUT, record, run_config
from tests.runners.rollouts.harnesses.real_agent import call, install_or_skip

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run with one rollout of one turn."""
    place = tmp_path_factory.mktemp("run")
    script = [call("Submit", message="done")]
    asyncio.run(record(run_config(place), place / "run", script))
    return str(place / "run")


def test_no_difference_has_exit_code_0(agentrl: Agentrl, run: str) -> None:
    done = agentrl("replay", run, "--rollout", ROLLOUT, "--json")
    found = json.loads(done.stdout)
    assert done.code == found["exit_code"] == 0
    assert (found["first"], found["differences"]) == (None, [])
    assert list(Path.cwd().iterdir()) == []


def test_the_first_difference_is_shown_with_both_texts(agentrl: Agentrl, run: str) -> None:
    done = agentrl("replay", run, "--rollout", ROLLOUT, "harness.max_tokens=95")
    shown = " ".join(done.stdout.split())
    assert done.code == 1
    assert "turn 0 of thread main (main): limits" in shown
    assert '"max_tokens": 4096' in shown
    assert '"max_tokens": 95' in shown


def test_the_document_names_the_first_difference(agentrl: Agentrl, run: str) -> None:
    done = agentrl("replay", run, "--rollout", ROLLOUT, "harness.max_tokens=95", "--json")
    found = json.loads(done.stdout)
    assert done.code == found["exit_code"] == 1
    first = found["first"]
    assert (first["branch"], first["thread"], first["turn"]) == ("main", "main", 0)
    assert first == found["differences"][0]


def test_an_unknown_rollout_is_a_usage_error(agentrl: Agentrl, run: str) -> None:
    done = agentrl("replay", run, "--rollout", "train-9", "--json")
    assert done.code == 2
    assert "has no rollout train-9" in json.loads(done.stdout)["error"]


def test_a_version_that_loses_signal_has_exit_code_1(agentrl: Agentrl, tmp_path: Path) -> None:
    script = [call("Bash", command="ls"), call("Submit", message="done")]
    asyncio.run(record(run_config(tmp_path), tmp_path / "run", script))
    run = str(tmp_path / "run")
    same = agentrl("check", "harness.max_tokens=95", "--against", run, "--json")
    found = json.loads(same.stdout)
    assert same.code == found["exit_code"] == found["signal"]["lost"] == 0
    assert found["changes"] == {"limits": 2}
    cut = agentrl("check", "harness.max_turns=1", "--against", run)
    assert cut.code == 1
    shown = " ".join(cut.stdout.split())
    assert "requests that differ missing 1" in shown
    assert re.search(r"training signal [1-9]\d* of \d+ tokens lost", shown)
    other = agentrl("check", "harness=codex@0.171.0", "--against", run)
    assert other.code == 2
    assert "recorded with harness=native, not harness=codex" in other.stderr


@pytest.mark.agents
def test_a_version_alone_is_compared_with_the_recording_that_comes_along(agentrl: Agentrl) -> None:
    install_or_skip(compose(["harness=codex@0.171.0"]).harness)
    same = agentrl("check", "harness=codex@0.171.0", "--json")
    found = json.loads(same.stdout)
    assert (same.code, found["changes"], found["signal"]["lost"]) == (0, {}, 0)
    assert found["versions"] == ["0.171.0"]
