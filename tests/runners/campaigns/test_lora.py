"""A campaign that trains adapters: with an engine that loads them, and with the embedded one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.errors import ExitCode
from runners.engines.adapters import LOAD_PATH
from runners.engines.client import UPDATE_PATH
from runners.engines.contract import ADAPTER_NAME
from runners.records.record import UNKNOWN_VERSION
from tests.runners.campaigns.conftest import Miniature

pytest.importorskip("peft", reason="pip install 'agentrl-campaigns[lora]'")
pytestmark = pytest.mark.integration

FEW = [
    *("run.steps=1", "run.tasks_per_step=1", "run.rollouts_per_task=2", "run.eval_tasks=0"),
    *("scenario=linear", "harness.max_turns=2", "sampling.max_new_tokens=16"),
    *("trainer.lora.rank=2", "trainer.advantage=reinforce_pp", "reward.malformed_penalty=0"),
]

MOVING = ["trainer.kl.weight=0.1", "trainer.entropy_bonus=0.1", "trainer.learning_rate=0.01"]
"""The untrained policy solves nothing: the bonus gives its first step a gradient."""


def loaded(engine: ScriptedEngine) -> list[str]:
    """Return the directories of adapters that were loaded, without the run's."""
    paths = [Path(body["lora_path"]) for path, body in engine.seen.calls if path == LOAD_PATH]
    assert all(path.name == "adapter" and path.is_dir() for path in paths)
    return [path.parent.name for path in paths]


async def run(miniature: Miniature, engine: ScriptedEngine, *, resume: str = "") -> bytes:
    served = ["model=tiny", "engine=sglang", f"engine.url={engine.url}"]
    engine.adapters, engine.long_s, engine.weight_version = {}, 1.0, "0"
    engine.always = Completion("ab<|im_end|>")
    process = miniature.resume(resume, served[-1]) if resume else miniature.begin(*served, *FEW)
    out, err = await asyncio.to_thread(process.communicate, timeout=600)
    assert process.returncode == 0, err.decode()
    return out


async def test_adapters_are_loaded_at_the_start_after_each_step_and_at_a_resume(
    miniature: Miniature,
) -> None:
    async with ScriptedEngine() as engine:
        await run(miniature, engine)
        assert loaded(engine) == ["start", "step-000001"]
        bases = [body["model_path"] for path, body in engine.seen.calls if path == UPDATE_PATH]
        assert bases == [str(miniature.policy)]
        asked = [body for body in engine.seen.requests if "probe" not in body["rid"]]
        assert asked
        assert all(body["lora_path"] == ADAPTER_NAME for body in asked)
    step = miniature.run_dir / "checkpoints" / "step-000001"
    assert not list(step.glob("model*.safetensors")), "the engine takes adapters"
    async with ScriptedEngine() as another:
        await run(miniature, another, resume="run.steps=2")
        assert loaded(another) == ["step-000001", "step-000002"]
    with miniature.store() as store:
        turns = [turn for name in store.sessions() for turn in store.turns(name)]
    assert {turn.weight_version for turn in turns} == {0, 1}
    assert UNKNOWN_VERSION not in {turn.weight_version for turn in turns}


async def test_a_server_without_adapters_is_refused_before_the_first_rollout(
    miniature: Miniature,
) -> None:
    async with ScriptedEngine() as engine:
        engine.always, engine.long_s = Completion("ab<|im_end|>"), 1.0
        process = miniature.begin("model=tiny", "engine=sglang", f"engine.url={engine.url}", *FEW)
        out, err = await asyncio.to_thread(process.communicate, timeout=600)
    assert process.returncode == ExitCode.PREFLIGHT, err.decode()
    assert b"--enable-lora --max-lora-rank 2" in out + err


def test_the_embedded_engine_gets_the_weights_with_the_adapters_in_them(
    miniature: Miniature,
) -> None:
    process = miniature.begin(*FEW, *MOVING)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["steps"] == 1
    process = miniature.resume("run.steps=2")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()
    [_, line] = (miniature.run_dir / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    # the engine samples with merged weights, training computes with adapters: the same policy
    assert metrics["policy/k3"] < 1e-6
    assert metrics["policy/kl"] > 0.0
