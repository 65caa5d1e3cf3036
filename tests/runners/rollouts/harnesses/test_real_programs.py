"""Real agent programs of ``harness=command``: each edits a file by its own tools, and every token
that it sampled for that is trained.

``pytest -m agents -s tests/runners/rollouts/harnesses/test_real_programs.py`` prints their table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from runners.records.outcome import OutcomeCode
from runners.rollouts.harnesses.registry import install_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.runners.rollouts.harnesses.real_agent import MAIN, RealProgram, call, chains_of, say

pytestmark = [pytest.mark.integration, pytest.mark.agents]

SED = "sed -i s/-/+/ a.py"


@dataclass(frozen=True)
class Scripted:
    """A program, and what the policy says to make it edit the file."""

    harness: str
    script: tuple[str, ...]
    side: int = 0
    """Requests besides the work: titles."""


PROGRAMS = [
    Scripted("pi", (call("bash", command=SED), say("Done."))),
    Scripted(
        "opencode",
        (say("A title"), call("bash", command=SED, description="Fix"), say("Done.")),
        side=1,
    ),
    Scripted(
        "qwen_code", (call("run_shell_command", command=SED, is_background=False), say("Done."))
    ),
    Scripted("gemini_cli", (call("run_shell_command", command=SED), say("Done."))),
    Scripted("continue", (call("Bash", command=SED), say("Done."))),
    Scripted("openai_agents", (call("bash", command=SED), say("Done."))),
    Scripted("claude_agent_sdk", (call("Bash", command=SED, description="Fix"), say("Done."))),
    Scripted("cline", (call("run_commands", commands=[SED]), say("Done."))),
    Scripted(
        "openhands",
        (
            call("terminal", command=SED, security_risk="LOW", summary="Fix"),
            call("finish", message="Done."),
        ),
    ),
    Scripted(
        "aider",
        (
            say(
                "a.py\n```python\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n"
                ">>>>>>> REPLACE\n```\n"
            ),
        ),
    ),
]
QUICK = ("pi",)
"""Those that every run of the tests installs."""


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
    config = compose(["harness=opencode"])
    backend = make_backend(config.sandbox, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(each, id=each.harness, marks=[] if each.harness in QUICK else pytest.mark.slow)
        for each in PROGRAMS
    ],
)
async def test_a_program_by_its_commands_works_and_is_trained(
    wanted: Scripted, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    config = compose([f"harness={wanted.harness}"])
    await asyncio.to_thread(install_harness, config.harness)
    program = RealProgram(config, backend, engine, tmp_path)
    engine.say(*wanted.script)
    done = await program.work()
    chains, stats = chains_of(done), done.finished["stats"]
    print(f"\n{wanted.harness:<12} {done.result.code} {chains} {done.changed} {stats}")
    assert done.result.code is OutcomeCode.POLICY_FINISHED, done.result
    assert "a + b" in done.a_py
    assert done.changed == [], "what the program writes stays out of the workspace"
    assert done.result.facts["program"] == wanted.harness
    assert wanted.harness != "pi" or done.result.facts["version"], "npm's package names it"
    main = [chain for chain in chains if chain[:2] == ("final", MAIN)]
    assert len(main) == 1
    assert len(main[0][2]) == len(wanted.script) - wanted.side
    assert stats["sampled_tokens"] == sum(len(ids) for ids, _ in engine.seen.answered)
