"""The real Codex, in the real sandbox, through the real gateway: every sampled token is trained and
every branch named, in every scenario.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from conf import programs
from conf.compose import compose
from conf.schema import (
    CodexHarness,
    CompactScenario,
    MixedScenario,
    Scenario,
    SubagentScenario,
)
from runners.harnesses.registry import install_harness
from runners.outcome import OutcomeCode
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.fakes.scripted_engine import Completion, ScriptedEngine
from tests.runners.harnesses.real_agent import (
    LINEAR,
    MAIN,
    SUB,
    call,
    chains_of,
    check_tokens,
    gateway_session,
    say,
    work,
)

pytestmark = pytest.mark.agents

CONFIG = compose(["harness=codex"])
assert isinstance(CONFIG.harness, CodexHarness)
HARNESS = CONFIG.harness

READ = call("exec_command", cmd="cat a.py")
COUNT = call("exec_command", cmd="seq 1000 1600")
EDIT = call("exec_command", cmd="sed -i s/-/+/ a.py")
TASK = "look at a.py"
SENT = call("multi_agent_v1__spawn_agent", message=TASK)
WAIT = call("multi_agent_v1__wait_agent", targets=["AGENT"])
"""The agent's name is in the prompt only."""
REPORT = say("it subtracts")
SUMMARY = say("add in a.py subtracts")
DONE = say("done")


@pytest.fixture(scope="module")
def installed() -> None:
    """Install Codex, or skip where nothing can."""
    if shutil.which("npm") is None and not programs.codex(HARNESS).exists():
        pytest.skip("npm, which installs Codex, is not here")
    install_harness(HARNESS)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
    backend = make_backend(CONFIG.sandbox, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


class TwoThreads(ScriptedEngine):
    """Has a script for the sub-agent too, whose requests come between those of the main agent."""

    def __init__(self) -> None:
        super().__init__()
        self.main: deque[Completion] = deque()
        self.sub: deque[Completion] = deque()

    async def _generate(self, body: dict[str, Any]) -> web.StreamResponse:
        prompt = self.tokenizer.decode(body["input_ids"], skip_special_tokens=False)
        self.script = self.sub if f"user\n{TASK}" in prompt else self.main
        if self.script and (agent := re.search(r'"agent_id":"([^"]+)"', prompt)):
            text = self.script[0].text.replace("AGENT", agent[1])
            self.script[0] = replace(self.script[0], text=text)
        return await super()._generate(body)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine


@pytest.mark.parametrize(
    ("scenario", "script", "chains"),
    [
        (LINEAR, [READ, EDIT, DONE], [("final", MAIN, (0, 1, 2))]),
        (
            CompactScenario(kind="compact", window_tokens=18_000),
            [COUNT, READ, SUMMARY, EDIT, DONE],
            [("wipe", MAIN, (0, 1)), ("compaction", MAIN, (2,)), ("final", MAIN, (3, 4))],
        ),
    ],
    ids=["linear", "compact"],
)
async def test_every_branch_of_a_scenario_is_named_and_all_its_sampled_tokens_are_trained(
    scenario: Scenario,
    script: list[str],
    chains: list[tuple[str, str, tuple[int, ...]]],
    installed: None,
    backend: SandboxBackend,
    engine: ScriptedEngine,
    tmp_path: Path,
) -> None:
    engine.say(*script)
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path, scenario)
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
            SubagentScenario(kind="subagent"),
            [SENT, WAIT, READ, EDIT, DONE],
            [READ, REPORT],
            [("final", MAIN, 5), ("subagent", SUB, 2)],
        ),
        (
            MixedScenario(kind="mixed", window_tokens=24_500),
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
    scenario: Scenario,
    main: list[str],
    sub: list[str],
    chains: list[tuple[str, str, int]],
    installed: None,
    backend: SandboxBackend,
    tmp_path: Path,
) -> None:
    async with TwoThreads() as engine:
        engine.main.extend(map(Completion, main))
        engine.sub.extend(map(Completion, sub))
        async with gateway_session(engine, tmp_path) as session:
            done = await work(HARNESS, backend, session, tmp_path, scenario)
        result = done.result
        assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done"), result
        assert sorted((kind, thread, len(own)) for kind, thread, own in chains_of(done)) == chains
        check_tokens(done, engine)
        assert result.facts["subagents"] == 1


async def test_at_the_deadline_it_is_a_budget(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.say(call("exec_command", cmd="tail -f a.py", yield_time_ms=30_000))
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path, deadline_s=3)
    assert done.result.code is OutcomeCode.BUDGET_WALL
    assert done.finished["stats"]["turns"] == 1


async def test_a_history_that_outgrows_the_model_is_a_budget(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.say(COUNT)
    async with gateway_session(engine, tmp_path, max_context_tokens=17_000) as session:
        done = await work(HARNESS, backend, session, tmp_path)
    assert done.result.code is OutcomeCode.BUDGET_TOKENS, done.result
    assert done.finished["stats"]["turns"] == 1


async def test_a_refused_key_is_the_gateways_failure(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path, key="unknown", deadline_s=30)
    assert done.result.code is OutcomeCode.INFRA_GATEWAY


async def test_an_engine_that_fails_is_the_models_failure(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path, deadline_s=30)
    assert done.result.code is OutcomeCode.INFRA_MODEL
