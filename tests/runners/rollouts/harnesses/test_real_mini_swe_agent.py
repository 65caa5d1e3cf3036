"""The real mini-swe-agent, in the real sandbox, through the real gateway: every sampled token is
trained.
"""

from __future__ import annotations

import pytest

from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.sections.harness import MiniSweAgentHarnessConfig
from runners.records.outcome import OutcomeCode
from tests.runners.rollouts.harnesses.real_agent import (
    MAIN,
    RealProgram,
    call,
    chains_of,
    check_tokens,
    say,
)

pytestmark = [pytest.mark.integration, pytest.mark.agents]

CONFIG = compose(["harness=mini_swe_agent"])
assert isinstance(CONFIG.harness, MiniSweAgentHarnessConfig)
HARNESS = CONFIG.harness

READ = call("bash", command="cat a.py")
EDIT = call("bash", command="sed -i s/-/+/ a.py")
SUBMIT = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo fixed")


@pytest.mark.decides
async def test_all_its_sampled_tokens_are_trained(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    engine.say(READ, EDIT, SUBMIT)
    done = await program.work()
    result = done.result
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "fixed\n"), result
    assert "a + b" in done.a_py
    assert done.changed == [], "what the program writes stays out of the workspace"
    assert chains_of(done) == [("final", MAIN, (0, 1, 2))]
    check_tokens(done, engine)
    expected = {"program": "mini_swe_agent", "version": HARNESS.version, "turns": 3}
    assert result.facts == expected


@pytest.mark.slow
async def test_an_answer_without_a_call_is_asked_for_again_and_trained(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    engine.say(READ, say("hm"), SUBMIT)
    done = await program.work()
    assert done.result.code is OutcomeCode.POLICY_FINISHED
    stats = done.finished["stats"]
    assert stats["trained_tokens"] == stats["sampled_tokens"]


@pytest.mark.slow
async def test_neither_its_key_nor_its_packages_reach_the_commands(
    program: RealProgram, engine: ScriptedEngine
) -> None:
    packages = call("bash", command="env; python -c 'import litellm'; true")
    own_file = call("bash", command="grep -A 5 model_kwargs /tmp/*/trajectory.json")
    engine.say(packages, own_file, SUBMIT)
    done = await program.work()
    assert done.result.code is OutcomeCode.POLICY_FINISHED
    prompt = engine.tokenizer.decode(engine.seen.requests[2]["input_ids"])
    assert "ModuleNotFoundError" in prompt
    assert "api_base" in prompt, "it keeps its settings in a file"
    assert done.key not in prompt + done.result.output
