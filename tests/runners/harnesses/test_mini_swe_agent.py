"""The real mini-swe-agent, in the real sandbox, through the real gateway: every sampled token is
trained. Its installation takes most of a minute, so these tests are slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conf.compose import compose
from conf.schema import MiniSweAgentHarness
from runners.harnesses.registry import install_harness
from runners.outcome import OutcomeCode
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.fakes.scripted_engine import Completion, ScriptedEngine
from tests.runners.harnesses.real_agent import (
    MAIN,
    call,
    chains_of,
    check_tokens,
    gateway_session,
    say,
    work,
)

pytestmark = [pytest.mark.agents, pytest.mark.slow]

CONFIG = compose(["harness=mini_swe_agent", "harness.max_turns=4"])
assert isinstance(CONFIG.harness, MiniSweAgentHarness)
HARNESS = CONFIG.harness

READ = call("bash", command="cat a.py")
EDIT = call("bash", command="sed -i s/-/+/ a.py")
SUBMIT = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo mended")


@pytest.fixture(scope="module")
def installed() -> None:
    install_harness(HARNESS)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
    backend = make_backend(CONFIG.sandbox, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine


async def test_all_its_sampled_tokens_are_trained(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.say(READ, EDIT, SUBMIT)
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path)
    result = done.result
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "mended\n"), result
    assert "a + b" in done.a_py
    assert done.changed == [], "what the program writes stays out of the workspace"
    assert chains_of(done) == [("final", MAIN, (0, 1, 2))]
    check_tokens(done, engine)
    expected = {"program": "mini_swe_agent", "version": HARNESS.version, "turns": 3}
    assert result.facts == expected


async def test_an_answer_without_a_call_is_asked_for_again_and_trained(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.say(READ, say("hm"), SUBMIT)
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path)
    assert done.result.code is OutcomeCode.POLICY_FINISHED
    stats = done.finished["stats"]
    assert stats["trained_tokens"] == stats["sampled_tokens"]


async def test_neither_its_key_nor_its_packages_reach_the_commands(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.say(call("bash", command="env; python -c 'import litellm'; true"), SUBMIT)
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path)
        key = session.key
    assert done.result.code is OutcomeCode.POLICY_FINISHED
    prompt = engine.tokenizer.decode(engine.seen.requests[1]["input_ids"])
    assert "ModuleNotFoundError" in prompt
    assert key not in prompt


async def test_the_turns_of_the_configuration_are_its_budget(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.always = Completion(READ)
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path)
    assert done.result.code is OutcomeCode.BUDGET_TURNS
    assert done.finished["stats"]["turns"] == HARNESS.max_turns


async def test_a_history_that_outgrows_the_model_is_a_budget(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.say(call("bash", command="seq 1000 2600"))
    async with gateway_session(engine, tmp_path, max_context_tokens=8_000) as session:
        done = await work(HARNESS, backend, session, tmp_path)
    assert done.result.code is OutcomeCode.BUDGET_TOKENS
    assert done.finished["stats"]["turns"] == 1


async def test_a_refused_key_is_the_gateways_failure(
    installed: None, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with gateway_session(engine, tmp_path) as session:
        done = await work(HARNESS, backend, session, tmp_path, key="unknown")
    assert done.result.code is OutcomeCode.INFRA_GATEWAY
