"""The real Codex, in the real sandbox, through the real gateway: every sampled token is trained and
every branch named, in every scenario.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.sections.harness import CodexHarnessConfig
from conf.sections.scenario import (
    CompactScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
    SubagentScenarioConfig,
)
from runners.records.outcome import OutcomeCode
from tests.runners.rollouts.harnesses.real_agent import (
    LINEAR,
    MAIN,
    SUB,
    RealProgram,
    SeveralThreads,
    call,
    chains_of,
    check_tokens,
    say,
)

pytestmark = [pytest.mark.integration, pytest.mark.agents]

CONFIG = compose(["harness=codex"])
assert isinstance(CONFIG.harness, CodexHarnessConfig)
HARNESS = CONFIG.harness

READ = call("exec_command", cmd="cat a.py")
COUNT = call("exec_command", cmd="seq 1000 3000")
"""Codex sums up where the last turn's tokens and a fourth of the bytes that came since exceed the
window. This one's 10,000 bytes are 10,000 tokens here: a window in the middle is passed by the
turn after it, and not before, whatever some hundred tokens of another version's prompt are.
"""
EDIT = call("exec_command", cmd="sed -i s/-/+/ a.py")
TASK = "look at a.py"
SENT = call("multi_agent_v1__spawn_agent", message=TASK)
WAIT = call("multi_agent_v1__wait_agent", targets=["AGENT"])
"""The agent's name is in the prompt only."""
REPORT = say("it subtracts")
SUMMARY = say("add in a.py subtracts")
DONE = say("done")


@pytest.mark.parametrize(
    ("scenario", "script", "chains"),
    [
        (LINEAR, [READ, EDIT, DONE], [("final", MAIN, (0, 1, 2))]),
        (
            CompactScenarioConfig(kind="compact", window_tokens=21_500),
            [COUNT, READ, SUMMARY, EDIT, DONE],
            [("wipe", MAIN, (0, 1)), ("compaction", MAIN, (2,)), ("final", MAIN, (3, 4))],
        ),
    ],
    ids=["linear", "compact"],
)
async def test_every_branch_of_a_scenario_is_named_and_all_its_sampled_tokens_are_trained(
    scenario: ScenarioConfig,
    script: list[str],
    chains: list[tuple[str, str, tuple[int, ...]]],
    program: RealProgram,
    engine: ScriptedEngine,
) -> None:
    engine.say(*script)
    done = await program.work(scenario)
    result = done.result
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done"), result
    assert "a + b" in done.a_py
    assert done.changed == [], "what the program writes stays out of the workspace"
    assert chains_of(done) == chains
    check_tokens(done, engine)
    assert (result.facts["program"], result.facts["version"]) == ("codex", HARNESS.version)


@pytest.mark.parametrize(
    ("scenario", "main", "sub", "chains"),
    [
        (
            SubagentScenarioConfig(kind="subagent"),
            [SENT, WAIT, READ, EDIT, DONE],
            [READ, REPORT],
            [("final", MAIN, 5), ("subagent", SUB, 2)],
        ),
        (
            MixedScenarioConfig(kind="mixed", window_tokens=30_000),
            [SENT, WAIT, COUNT, READ, SUMMARY, EDIT, DONE],
            [READ, REPORT],
            [
                ("compaction", MAIN, 1),
                ("final", MAIN, 2),
                ("subagent", SUB, 2),
                ("wipe", MAIN, 4),
            ],
        ),
    ],
    ids=["subagent", "mixed"],
)
async def test_a_sub_agent_is_a_branch_of_its_own(
    scenario: ScenarioConfig,
    main: list[str],
    sub: list[str],
    chains: list[tuple[str, str, int]],
    program: RealProgram,
) -> None:
    async with SeveralThreads({MAIN: main, TASK: sub}) as engine:
        done = await replace(program, engine=engine).work(scenario)
        result = done.result
        assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done"), result
        assert sorted((kind, thread, len(own)) for kind, thread, own in chains_of(done)) == chains
        check_tokens(done, engine)
        assert result.facts["subagents"] == 1


async def test_an_engine_that_fails_is_the_models_failure(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    done = await program.work(deadline_s=30)
    assert done.result.code is OutcomeCode.INFRA_MODEL
