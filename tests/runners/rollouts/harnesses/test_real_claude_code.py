"""The real Claude Code, in the real sandbox, through the real gateway: every sampled token is
trained and every branch named, in every scenario.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.sections.harness import ClaudeCodeHarnessConfig
from conf.sections.scenario import (
    CompactScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
    SubagentScenarioConfig,
)
from runners.records.outcome import OutcomeCode
from runners.rollouts.harnesses.claude_code import build_command, build_environment, read_result
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.runners.rollouts.harnesses.real_agent import (
    LINEAR,
    MAIN,
    SUB,
    RealProgram,
    call,
    chains_of,
    check_tokens,
    gateway_session,
    open_sandbox,
    say,
)

pytestmark = [pytest.mark.integration, pytest.mark.agents]

OVERRIDES = ["harness=claude_code", "harness.max_turns=9", "harness.max_tokens=4096"]
CONFIG = compose(OVERRIDES)
assert isinstance(CONFIG.harness, ClaudeCodeHarnessConfig)
HARNESS = CONFIG.harness


READ = call("Read", file_path="/workspace/a.py")
EDIT = call("Edit", file_path="/workspace/a.py", old_string="a - b", new_string="a + b")
COUNT = call("Bash", command="seq 1000 1600", description="Count")
SEARCH = call("Grep", pattern="lorem", path="/workspace/big.txt", output_mode="content")
SENT = call("Agent", description="Look", prompt="look at a.py", subagent_type="investigator")
REPORT = say("it subtracts")
LONG_REPORT = say("it subtracts\n" + "lorem ipsum\n" * 250)
SUMMARY = say("<summary>add in a.py subtracts</summary>")
DONE = say("done")


@pytest.fixture(scope="module", params=["auto", "none"])
def any_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SandboxBackend]:
    config = compose([*OVERRIDES, f"sandbox.isolation={request.param}"])
    backend = make_backend(config.sandbox, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


@pytest.mark.parametrize(
    ("scenario", "script", "chains"),
    [
        (LINEAR, [READ, EDIT, DONE], [("final", MAIN, (0, 1, 2))]),
        (
            SubagentScenarioConfig(kind="subagent"),
            [SENT, READ, REPORT, READ, EDIT, DONE],
            [("final", MAIN, (0, 3, 4, 5)), ("subagent", SUB, (1, 2))],
        ),
        (
            CompactScenarioConfig(kind="compact", window_tokens=16_500),
            [COUNT, READ, SUMMARY, EDIT, DONE],
            [("wipe", MAIN, (0, 1)), ("compaction", MAIN, (2,)), ("final", MAIN, (3, 4))],
        ),
        (
            MixedScenarioConfig(kind="mixed", window_tokens=9_500),
            [SENT, SEARCH, READ, SUMMARY, LONG_REPORT, READ, SUMMARY, EDIT, DONE],
            [
                ("wipe", MAIN, (0, 5)),
                ("wipe", SUB, (1, 2)),
                ("compaction", SUB, (3,)),
                ("subagent", SUB, (4,)),
                ("compaction", MAIN, (6,)),
                ("final", MAIN, (7, 8)),
            ],
        ),
    ],
    ids=["linear", "subagent", "compact", "mixed"],
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
    result, stats = done.result, done.finished["stats"]
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done"), result
    assert "a + b" in done.a_py
    assert done.changed == [], "what the program writes stays out of the workspace"
    segments = done.finished["segments"]
    subs = {chain["thread"] for chain in segments} - {MAIN}
    assert len(subs) == int(any(thread == SUB for _, thread, _ in chains))
    assert chains_of(done) == chains
    assert stats["turns"] == len(script)
    check_tokens(done, engine)
    facts = result.facts
    assert (facts["program"], facts["version"]) == ("claude_code", HARNESS.version)
    assert facts["subagents"] == len(subs)


def offered(engine: ScriptedEngine, turn: int) -> set[str]:
    """Return the tools that a prompt offers."""
    prompt = engine.tokenizer.decode(
        engine.seen.requests[turn]["input_ids"], skip_special_tokens=False
    )
    head = '{"type": "function", "function": {"name": "'
    return {part.partition('"')[0] for part in prompt.split(head)[1:]}


async def test_only_the_investigator_can_search(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    engine.say(SENT, REPORT, DONE)
    await program.work(SubagentScenarioConfig(kind="subagent"))
    assert offered(engine, 0) == {"Agent", "Edit", "Read", "Write"}
    assert offered(engine, 1) == {"Glob", "Grep", "Read"}


async def test_a_sub_agent_in_the_background_is_a_branch_too(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    scenario = SubagentScenarioConfig(kind="subagent")
    engine.say(SENT)
    engine.always = Completion(DONE)
    async with gateway_session(engine, program.place) as session:
        harness = make_harness(HARNESS, scenario)
        async with open_sandbox(program.backend, session, program.place, harness) as sandbox:
            env = build_environment(
                HARNESS, scenario, url=sandbox.gateway_url or "", api_key=session.key, model="m"
            )
            default = {k: v for k, v in env.items() if not k.endswith("DISABLE_BACKGROUND_TASKS")}
            argv = build_command(HARNESS, scenario)
            ended = await sandbox.run(argv, deadline_s=60, env=default, stdin=b"Fix add in a.py.")
        finished = await session.finish()
    assert b'"is_backgrounded":true' in ended.stdout
    assert read_result(ended).code is OutcomeCode.POLICY_FINISHED
    assert sorted(chain["kind"] for chain in finished["segments"]) == ["final", "subagent"]
    stats = finished["stats"]
    assert stats["trained_tokens"] == stats["sampled_tokens"]
    assert (stats["forks"], stats["ambiguous"]) == (0, 0)


async def test_it_runs_in_whatever_isolation_there_is(
    program: RealProgram, any_backend: SandboxBackend, engine: ScriptedEngine
) -> None:
    shell = call("Bash", command="sed -i s/-/+/ a.py && cat a.py", description="Fix")
    engine.say(shell, DONE)
    done = await replace(program, backend=any_backend).work()
    assert done.result.code is OutcomeCode.POLICY_FINISHED, done.result
    assert ("a + b" in done.a_py, done.changed) == (True, [])


async def test_a_refused_key_is_the_gateways_failure_even_at_the_deadline(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    done = await program.work(key="unknown", deadline_s=3)
    assert done.result.code is OutcomeCode.INFRA_GATEWAY
