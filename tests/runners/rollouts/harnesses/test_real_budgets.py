"""Ends of each real agent program: its turns, its tokens, its time, or a refused key."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.schema import Config
from conf.sections.scenario import SubagentScenarioConfig
from runners.records.outcome import OutcomeCode
from tests.runners.rollouts.harnesses.real_agent import RealProgram, call

pytestmark = [pytest.mark.integration, pytest.mark.agents]


@dataclass(frozen=True)
class Scripts:
    """Tool calls of its policy."""

    read: str
    long: str
    """A command whose output outgrows ``room``, a context window that holds its first prompt."""
    room: int
    wait: str
    """A command that does not end."""


SCRIPTS = {
    "claude_code": Scripts(
        read=call("Read", file_path="/workspace/a.py"),
        long=call("Bash", command="seq 1000 1600", description="Count"),
        room=16_000,
        wait=call("Bash", command="tail -f a.py", description="Wait"),
    ),
    "codex": Scripts(
        read=call("exec_command", cmd="cat a.py"),
        long=call("exec_command", cmd="seq 1000 1600"),
        room=17_000,
        wait=call("exec_command", cmd="tail -f a.py", yield_time_ms=30_000),
    ),
    "mini_swe_agent": Scripts(
        read=call("bash", command="cat a.py"),
        long=call("bash", command="seq 1000 2600"),
        room=8_000,
        wait=call("bash", command="tail -f a.py"),
    ),
}
EACH = pytest.mark.parametrize("config", SCRIPTS, indirect=True, scope="module")
QUICK = pytest.mark.parametrize(
    "config",
    ["claude_code", "codex", pytest.param("mini_swe_agent", marks=pytest.mark.slow)],
    indirect=True,
    scope="module",
)
"""mini-swe-agent takes seconds to start."""


@pytest.fixture(scope="module")
def config(request: pytest.FixtureRequest) -> Config:
    return compose([f"harness={request.param}"])


@EACH
async def test_its_turns(program: RealProgram, engine: ScriptedEngine) -> None:
    engine.always = Completion(SCRIPTS[program.config.harness.kind].read)
    done = await program.work(max_turns=2)
    assert done.result.code is OutcomeCode.BUDGET_TURNS, done.result
    assert done.finished["stats"]["turns"] == len(engine.seen.requests) == 2


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        (
            "claude_code",
            call("Agent", description="Look", prompt="look", subagent_type="investigator"),
        ),
        ("codex", call("multi_agent_v1__spawn_agent", message="look")),
    ],
    indirect=["config"],
    scope="module",
)
async def test_its_turns_are_those_of_its_sub_agents_too(
    sent: str,
    program: RealProgram,
    engine: ScriptedEngine,
) -> None:
    engine.say(sent)
    engine.always = Completion(SCRIPTS[program.config.harness.kind].read)
    scenario = SubagentScenarioConfig(kind="subagent")
    done = await program.work(scenario, max_turns=4)
    assert done.result.code is OutcomeCode.BUDGET_TURNS, done.result
    assert done.finished["stats"]["turns"] == 4
    assert "subagent" in done.finished["stats"]["branches"]


@pytest.mark.parametrize(
    "config",
    ["claude_code", pytest.param("mini_swe_agent", marks=pytest.mark.slow)],
    indirect=True,
    scope="module",
)
async def test_its_own_limit_of_turns(program: RealProgram, engine: ScriptedEngine) -> None:
    engine.always = Completion(SCRIPTS[program.config.harness.kind].read)
    harness = program.config.harness.model_copy(update={"max_turns": 3})
    config = program.config.model_copy(update={"harness": harness})
    done = await replace(program, config=config).work()
    assert done.result.code is OutcomeCode.BUDGET_TURNS
    assert done.finished["stats"]["turns"] == 3


@QUICK
async def test_its_tokens(program: RealProgram, engine: ScriptedEngine) -> None:
    scripts = SCRIPTS[program.config.harness.kind]
    engine.say(scripts.long)
    done = await program.work(room=scripts.room)
    assert done.result.code is OutcomeCode.BUDGET_TOKENS, done.result
    assert done.finished["stats"]["turns"] == 1


@QUICK
async def test_its_time(program: RealProgram, engine: ScriptedEngine) -> None:
    engine.say(SCRIPTS[program.config.harness.kind].wait)
    deadline_s = 30 if program.config.harness.kind == "mini_swe_agent" else 10
    done = await program.work(deadline_s=deadline_s)
    assert done.result.code is OutcomeCode.BUDGET_WALL
    assert done.finished["stats"]["turns"] == 1


@pytest.mark.parametrize(
    "config",
    ["codex", pytest.param("mini_swe_agent", marks=pytest.mark.slow)],
    indirect=True,
    scope="module",
)
async def test_a_refused_key_is_the_gateways_failure_and_no_budget(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    done = await program.work(key="unknown", deadline_s=30)
    assert done.result.code is OutcomeCode.INFRA_GATEWAY
