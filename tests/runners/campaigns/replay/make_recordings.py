"""Make the recordings that the package ships.

`python -m tests.runners.campaigns.replay.make_recordings`

Each is a run of one rollout of a real agent program, of the version that the package installs. Made
anew when that version changes, or the store's tables, the built-in tasks or the tiny tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from agentrl.testing.completions import spoken
from conf.compose import to_json
from conf.schema import Config
from runners.campaigns.replay.shipped import RECORDINGS, pack
from runners.records.store.run_store import RunStore
from runners.rollouts.harnesses.registry import install_harness
from tests.runners.campaigns.replay.recorded_rollout import record, run_config
from tests.runners.rollouts.harnesses.real_agent import call, say

SUMMARY = say("<summary>all is known</summary>")


def talk(name: str, **arguments: Any) -> str:
    """Return an answer that fills half of a window, and calls a tool."""
    said = {"type": "text", "text": "lorem ipsum\n" * 400}
    return spoken([said, {"type": "tool_use", "name": name, "input": arguments}])


LONG = talk("Read", file_path="/workspace/README.md")
SENT = call("Agent", description="Look", prompt="look for apples", subagent_type="investigator")
READ = call("Read", file_path="/workspace/README.md")
WRITE = call("Write", file_path="/workspace/answer.txt", content="42\n")
COUNT = call("exec_command", cmd="seq 1000 1600")
CAT = call("exec_command", cmd="cat README.md")
SCRIPTS: dict[str, tuple[tuple[str, ...], list[str], dict[str, list[str]]]] = {
    "claude_code": (
        ("harness.max_tokens=4096", "scenario=mixed", "scenario.window_tokens=14000"),
        [SENT, READ, LONG, LONG, SUMMARY, WRITE, say("done")],
        {"apples": [READ, say("there are none")]},
    ),
    "codex": (
        ("scenario=compact", "scenario.window_tokens=18000"),
        [COUNT, CAT, SUMMARY, CAT, say("done")],
        {},
    ),
}
"""By harness: settings, and the policy's answers in the main thread and in sub-agents."""


async def make(name: str) -> None:
    """Record one program, and pack the run."""
    settings, said, subs = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as place:
        config = run_config(Path(place), f"harness={name}", *settings)
        install_harness(config.harness)
        run = Path(place) / "run"
        stored = await record(config, run, said, **subs)
        assert stored.outcome.code == "policy.finished", stored
        with RunStore.open(run) as store:
            turns = store.turns(stored.session_id)
            store.replace_config(_without_paths(config))
        pack(run, name)
    branches = ", ".join(f"{turn.thread[:4]} {turn.branch}" for turn in turns)
    print(f"{name}: {branches}; {(RECORDINGS / f'{name}.tar.xz').stat().st_size:,} bytes")


def _without_paths(config: Config) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(to_json(config))
    stored["model"]["tokenizer"] = None
    return stored


if __name__ == "__main__":
    for each in SCRIPTS:
        asyncio.run(make(each))
