"""Another version of an agent program against a stored run: what changes, and what it costs."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from agentrl.testing.completions import spoken
from conf.errors import ExitCode
from runners.campaigns.replay.run import ReplayError
from runners.campaigns.replay.upgrade import UpgradeReport, compare_version
from tests.runners.campaigns.replay.recorded_rollout import record, run_config
from tests.runners.rollouts.harnesses.real_agent import call, install_or_skip, say

pytestmark = pytest.mark.integration

LOOK = call("Bash", command="ls")
SUBMIT = call("Submit", message="done")


async def compare(run: Path, *lines: str) -> UpgradeReport:
    return await asyncio.to_thread(compare_version, run, list(lines), lambda text: None)


async def test_a_changed_recording_shows_in_the_report_and_the_exit_code(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await record(run_config(tmp_path), run, [LOOK, LOOK, SUBMIT])
    same = await compare(run)
    assert (same.exit_code, same.changes(), same.moved()) == (ExitCode.DONE, {}, {})
    assert same.chains() == {"final": (1, 1)}

    with sqlite3.connect(run / "store.sqlite") as database:
        text = "replace(request, 'Solve the task', 'Do the task')"
        database.execute(f"UPDATE turn SET request = {text} WHERE turn_index = 0")
    database.close()
    told = await compare(run)
    assert (told.exit_code, told.changes()) == (ExitCode.DONE, {"message": 1}), "nothing is lost"

    cut = await compare(run, "harness.max_turns=1")
    assert (cut.exit_code, cut.changes()["missing"]) == (ExitCode.FAILURE_BUDGET, 2)
    assert 0 < cut.lost < cut.recorded == same.recorded

    with pytest.raises(ReplayError, match="recorded with harness=native, not harness=codex"):
        await compare(run, "harness=codex@0.169.0")


@pytest.mark.slow
@pytest.mark.agents
async def test_an_older_claude_code_is_compared_with_what_a_newer_one_recorded(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    config = run_config(
        tmp_path,
        "harness=claude_code",
        "harness.max_tokens=4096",
        "scenario=compact",
        "scenario.window_tokens=14000",
    )
    install_or_skip(config.harness)
    lists = spoken(
        [
            {"type": "text", "text": "lorem ipsum\n" * 400},
            {"type": "tool_use", "name": "Glob", "input": {"pattern": "README.md"}},
        ]
    )
    script = [lists, lists, say("<summary>all is known</summary>"), say("done")]
    stored = await record(config, run, script)
    assert stored.turns == 4

    same = await compare(run)
    assert (same.lost, same.moved(), same.changes()) == (0, {}, {})
    older = await compare(run, "harness=claude_code@2.1.210")
    print(older.to_dict())
    assert older.versions() == ["2.1.328", "2.1.210"]
    assert older.changes()["tools"] or older.changes()["message"]
    assert older.exit_code is ExitCode.FAILURE_BUDGET, "it never sums up"
    assert older.chains()["compaction"] == (1, 0)
