"""The commands of the guides, run as they stand, against an engine that speaks SGLang's API."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copytree

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.endpoint_servers import TextAnswer
from tests.fakes.followed_page import follow
from tests.fakes.openai_server import OpenaiServer
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENDPOINTS = "Measure or record a model behind an API of texts"
SERVED = "http://127.0.0.1:30000"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a model's checkpoint, as the guides assume it."""
    weights = tmp_path / "work" / "weights"
    weights.mkdir(parents=True)
    write_tiny_tokenizer(weights)
    write_tiny_model(weights, vocab_size=tiny_tokenizer().get_vocab_size())
    return weights.parent


async def test_training_on_an_own_repository_goes_as_its_guide_says(place: Path) -> None:
    copytree(ROOT / "examples" / "own_repository", place, dirs_exist_ok=True)
    async with ScriptedEngine() as engine:
        engine.context_length = 40960
        printed = await follow(
            DOCS / "tasks.md", place, {SERVED: engine.url}, "Train on your own repository"
        )
        assert engine.seen.requests == [], "a dry run samples nothing"
    assert "no problems found" in printed[-1]
    assert "160 rollouts: 20 steps × 1 tasks × 8" in printed[-1]
    found = json.loads((place / "calibration" / "calibration.json").read_text())
    assert (found["fit"], found["gold_solved"], found["empty_solved"]) == (1, 1, 0)
    assert not (place / "runs").exists()


async def test_code_of_ones_own_takes_every_seam_of_a_campaign(place: Path) -> None:
    printed = await follow(DOCS / "extending.md", place, {})
    [tested] = [text for text in printed if " passed" in text]
    assert re.search(r"^40 passed, 1 skipped in", tested, re.M), tested
    assert "trainer.advantage" in printed[0]
    run = place / "trial"
    config = json.loads((run / "config.json").read_text())
    plugins = [config["harness"], config["reward"], config["task"]["format"]]
    plugins += [config["task"]["grader"], config["trainer"]["advantage"]]
    plugins += [config["run"]["sampler"]]
    plugins.append(config["trainer"]["loss"])
    assert all(each["version"].startswith("sha256:") for each in plugins)
    assert config["reward"]["options"] == {"per_token": 0.002}
    with RunStore.open(run, read_only=True) as store:
        rollouts = [record for record in store.rollouts() if record.counts]
        assert len(rollouts) == 16
        for step in (1, 2):
            groups = [[r for r in rollouts if (r.step, r.group) == (step, g)] for g in (0, 1)]
            for group in groups:
                assert sum(record.advantage or 0.0 for record in group) == pytest.approx(0)
    for record in rollouts:
        assert record.verdict is not None
        score = record.verdict["rewards"]["reward"]
        assert record.reward == pytest.approx(score - 0.002 * record.sampled_tokens)
    kept = [json.loads(line) for line in (place / "rewards.jsonl").read_text().splitlines()]
    assert [row["step"] for row in kept] == [1, 2]
    assert len((run / "dump" / "rewards.csv").read_text().splitlines()) == 16
    first = [record for record in rollouts if (record.step, record.group) == (1, 0)]
    rewards = [record.reward or 0.0 for record in first]
    assert first[0].advantage == pytest.approx(rewards[0] - sum(rewards[1:]) / 3)


async def test_a_program_runs_and_reads_campaigns_as_the_guide_says(place: Path) -> None:
    printed = await follow(DOCS / "python.md", place, {})
    campaign, measured = (text.splitlines() for text in printed)
    assert campaign[0].startswith("DONE {'sampled': ")
    assert [line.split()[0] for line in campaign[1:3]] == ["1", "2"]
    assert campaign[5].split()[0] == "final"
    assert measured[0] == "2 rollouts"
    assert measured[2].startswith("0 main ")
    checked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"),
        *(place / "campaign.py", place / "measure.py"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await checked.communicate()
    assert checked.returncode == 0, out.decode()


async def test_a_served_model_gets_exactly_the_documented_sampling(place: Path) -> None:
    async with ScriptedEngine() as engine:
        engine.context_length = 40960
        engine.long_s = 1.0
        engine.always = Completion("I give up.<|im_end|>")
        printed = await follow(
            DOCS / "evaluate.md", place, {SERVED: engine.url}, "Measure a served model"
        )
        asked = [
            request["sampling_params"]
            for request in engine.seen.requests
            if "probe" not in request["rid"] and len(request["input_ids"]) > 100
        ]
        assert not [path for path, _ in engine.seen.calls if "update_weights" in path]
    for line in ("eval_temperature: 0.0", "max_new_tokens: 32768", "max_context_tokens: 96000"):
        assert line in printed[0]
    measured = asked[-1]
    assert measured["temperature"] == 0.0
    assert measured["max_new_tokens"] == 16384, "half of a window of 32,768"
    assert measured.get("top_p", 1.0) == 1.0
    assert measured.get("top_k", -1) == -1
    assert json.loads((place / "measured" / "report.json").read_text())["rollouts"]


async def test_endpoints_are_evaluated_as_their_guide_says(place: Path) -> None:
    async with OpenaiServer("llama.cpp") as openai, AnthropicServer() as anthropic:
        openai.models, anthropic.models = ["local-model"], ["claude-model"]
        for server in (openai, anthropic):
            server.make_answer = lambda body: TextAnswer("I give up.")
        addresses = {
            "http://127.0.0.1:8080": openai.url,
            "http://127.0.0.1:8090": anthropic.url,
        }
        printed = await follow(DOCS / "evaluate.md", place, addresses, ENDPOINTS)
    assert "engine: token ids  ok: not known: nothing can be trained" in printed[0]
    assert "token ids and logprobs are not known" in printed[1]
    sent = openai.requests[-1]
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (1.0, 1.0, 32768)
    assert {"temperature", "top_p", "top_k"}.isdisjoint(anthropic.requests[-1])
    for name in ("of-openai", "of-anthropic"):
        report = json.loads((place / name / "report.json").read_text())
        assert report["unresolved_instances"] + report["empty_patch_instances"] == 1


async def test_programs_are_attached_to_the_gateway_as_its_guide_says(place: Path) -> None:
    copytree(ROOT / "examples" / "gateway", place, dirs_exist_ok=True)
    async with ScriptedEngine() as engine:
        engine.context_length = 40960
        engine.always = Completion("hello<|im_end|>")
        try:
            printed = await follow(DOCS / "gateway.md", place, {SERVED: engine.url})
        except BaseException:  # the guide's last line, which ends the gateway, was not reached
            with suppress(OSError, ValueError):
                os.kill(json.loads((place / "gateway.json").read_text())["pid"], signal.SIGKILL)
            raise
    sampled = tiny_tokenizer().encode("hello<|im_end|>").ids
    assert printed[:1] == ["hello\n"]
    assert printed[2] == f"policy.finished 1.0 [{len(sampled)}]\n"
    once, recorded = (
        json.loads((place / file).read_text())
        for file in ("record.jsonl", "recorded/dump/trajectories.jsonl")
    )
    assert (once["reward"]["score"], recorded["reward"]["score"]) == (None, 1.0)
    for record in (once, recorded):
        (segment,) = record["segments"]
        assert segment["tokens"][-len(sampled) :] == sampled
    assert (recorded["task"], recorded["outcome"]["code"]) == ("greet", "policy.finished")
