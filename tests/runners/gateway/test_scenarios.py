"""The native agent in every scenario, through the real gateway: each branch is captured, named and
trained.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.rollouts.harnesses.native import agent
from runners.rollouts.harnesses.native.client import Messages
from tests.fakes.running_gateway import Gateway


def call(name: str, **arguments: str) -> str:
    """Return a tool call as the policy samples it."""
    return spoken([{"type": "tool_use", "name": name, "input": arguments}])


READ = call("Read", path="a.py")
EDIT = call("Edit", path="a.py", old_string="a - b", new_string="a + b")
DONE = call("Submit", message="done")
REPORT = call("Submit", message="it subtracts")
SENT = call("Agent", prompt="look at a.py")
SUMMARY = spoken([{"type": "text", "text": "a.py subtracts"}])


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that the agent works in."""
    directory = tmp_path / "workspace"
    directory.mkdir()
    (directory / "a.py").write_text("def add(a, b):\n    return a - b\n")
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.parametrize(
    ("dispatch", "window", "script", "chains"),
    [
        (False, 0, [READ, EDIT, DONE], [("final", "main", (0, 1, 2))]),
        (
            True,
            0,
            [SENT, READ, REPORT, EDIT, DONE],
            [("final", "main", (0, 3, 4)), ("subagent", "investigator-1", (1, 2))],
        ),
        (
            False,
            1,
            [READ, SUMMARY, EDIT, DONE],
            [("wipe", "main", (0,)), ("compaction", "main", (1,)), ("final", "main", (2, 3))],
        ),
        (
            True,
            1,
            [SENT, READ, SUMMARY, REPORT, SUMMARY, EDIT, DONE],
            [
                ("wipe", "main", (0,)),
                ("wipe", "investigator-1", (1,)),
                ("compaction", "investigator-1", (2,)),
                ("subagent", "investigator-1", (3,)),
                ("compaction", "main", (4,)),
                ("final", "main", (5, 6)),
            ],
        ),
    ],
    ids=["linear", "subagent", "compact", "mixed"],
)
async def test_every_branch_of_a_scenario_is_named_and_all_its_sampled_tokens_are_trained(
    dispatch: bool,
    window: int,
    script: list[str],
    chains: list[tuple[str, str, tuple[int, ...]]],
    gateway: Gateway,
    engine: ScriptedEngine,
    workspace: Path,
) -> None:
    session = await gateway.session()
    engine.say(*script)
    settings: dict[str, Any] = {"model": "policy", "max_turns": 9, "max_tokens": 500}
    settings |= {"dispatch": dispatch, "window_tokens": window}
    messages = Messages(gateway.url, session.key)
    end = await asyncio.to_thread(agent.solve, messages, "fix a.py", settings)
    messages.connection.close()
    assert (end["code"], end["turns"]) == ("policy.finished", len(script))
    assert "a + b" in (workspace / "a.py").read_text()
    finished = await session.finish()
    found = finished["segments"]
    assert [(c["kind"], c["thread"], tuple(c["own_turns"])) for c in found] == chains
    stats = finished["stats"]
    assert stats["trained_tokens"] == stats["sampled_tokens"]
    assert (stats["forks"], stats["ambiguous"], stats["retries"]) == (0, 0, 0)
    for chain in found:
        last = chain["turns"][-1]
        saw = engine.seen.requests[last]["input_ids"] + engine.seen.answered[last][0]
        assert chain["tokens"] == saw
