"""A stored rollout of Claude Code, and one of Codex, replayed with the same program."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import spoken
from runners.campaigns.replay.run import replay
from runners.records.store.run_store import RunStore
from tests.runners.campaigns.replay.recorded_rollout import ROLLOUT, record, run_config
from tests.runners.rollouts.harnesses.real_agent import MAIN, call, install_or_skip, say

pytestmark = [pytest.mark.integration, pytest.mark.agents]

SCRIPTS = {
    "claude_code": call("Bash", command="cat *.md; ls", description="Look"),
    "codex": call("exec_command", cmd="cat *.md; ls"),
}


@pytest.mark.parametrize("kind", SCRIPTS)
async def test_the_same_program_sends_the_same_requests(kind: str, tmp_path: Path) -> None:
    config = run_config(tmp_path, f"harness={kind}")
    install_or_skip(config.harness)
    stored = await record(config, tmp_path / "run", [SCRIPTS[kind], SCRIPTS[kind], say("done")])
    assert stored.turns == 3
    result = await asyncio.to_thread(replay, tmp_path / "run", ROLLOUT, [])
    assert result.differences == ()
    assert (result.turns["replayed"], result.outcome["replayed"]) == (3, "policy.finished")
    assert result.version["recorded"] == result.version["replayed"] is not None


def talk(text: str, name: str, **arguments: Any) -> str:
    """Return an answer that says something before its call."""
    said = {"type": "text", "text": text}
    return spoken([said, {"type": "tool_use", "name": name, "input": arguments}])


def sent(*words: str) -> str:
    """Return one answer that sends several sub-agents at once, each with its word."""
    common = {"description": "Look", "subagent_type": "investigator"}
    return spoken(
        {"type": "tool_use", "name": "Agent", "input": {**common, "prompt": f"look for {word}"}}
        for word in words
    )


LONG = "lorem ipsum\n" * 400
LIST = {"name": "Glob", "pattern": "README.md"}
WORK = [talk(LONG, **LIST), talk(LONG, **LIST)]
"""More than a window holds."""
MAIN_SAYS = [sent("apples", "pears"), *WORK, say("<summary>all is known</summary>"), say("done")]
SUBS_SAY = {
    word: [talk("Hm.", **LIST), *WORK, say(f"<summary>{word}</summary>"), say("it is there")]
    for word in ("apples", "pears")
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one rollout of Claude Code, whose two sub-agents work at the same time."""
    place = tmp_path_factory.mktemp("mixed")
    scenario = ["scenario=mixed", "scenario.window_tokens=14000"]
    config = run_config(place, "harness=claude_code", "harness.max_tokens=4096", *scenario)
    install_or_skip(config.harness)
    stored = asyncio.run(record(config, place / "run", MAIN_SAYS, **SUBS_SAY))
    assert stored.outcome.code == "policy.finished", stored
    return place / "run"


async def test_sub_agents_and_summaries_are_answered_branch_by_branch(mixed: Path) -> None:
    with RunStore.open(mixed, read_only=True) as store:
        turns = store.turns(f"{ROLLOUT}-a0")
    found = Counter((turn.thread == MAIN, turn.branch) for turn in turns)
    assert found == {(True, "main"): 4, (True, "compaction"): 1, (False, "subagent"): 8} | {
        (False, "compaction"): 2
    }
    result = await asyncio.to_thread(replay, mixed, ROLLOUT, [])
    assert (result.differences, result.outcome["replayed"]) == ((), "policy.finished")
    assert result.turns["replayed"] == result.turns["recorded"] == len(turns)


async def test_another_window_is_seen_first_where_a_summary_is_not_asked_for(mixed: Path) -> None:
    result = await asyncio.to_thread(replay, mixed, ROLLOUT, ["scenario.window_tokens=50000"])
    first = result.differences[0]
    assert (first.what, first.branch, first.turn) == ("missing", "compaction", 3)
    assert first.thread not in (MAIN, None)
    assert "CRITICAL: Respond with TEXT ONLY" in first.recorded
    assert first.replayed == ""
