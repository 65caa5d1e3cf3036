"""A stored rollout of Claude Code, and one of Codex, replayed with the same program."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from conf import programs
from runners.harnesses.registry import install_harness
from runners.replay.run import replay
from tests.runners.harnesses.real_agent import call, say
from tests.runners.replay.recorded import ROLLOUT, record, run_config

pytestmark = pytest.mark.agents

SCRIPTS = {
    "claude_code": call("Bash", command="cat *.md; ls", description="Look"),
    "codex": call("exec_command", cmd="cat *.md; ls"),
}


@pytest.mark.parametrize("kind", SCRIPTS)
async def test_the_same_program_sends_the_same_requests(kind: str, tmp_path: Path) -> None:
    config = run_config(tmp_path, f"harness={kind}")
    program = programs.place(config.harness)
    assert program is not None
    if shutil.which("npm") is None and not program.exists():
        pytest.skip("npm, which installs it, is not here")
    install_harness(config.harness)
    stored = await record(config, tmp_path / "run", [SCRIPTS[kind], SCRIPTS[kind], say("done")])
    assert stored.turns == 3
    result = await asyncio.to_thread(replay, tmp_path / "run", ROLLOUT, [])
    assert result.differences == ()
    assert (result.turns["replayed"], result.outcome["replayed"]) == (3, "policy.finished")
    assert result.version["recorded"] == result.version["replayed"] is not None
