"""A step's samples and a real teacher: which of them are scored, and which teacher fits."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from conf.compose import compose
from conf.schema import Config
from runners.campaigns.preflight.teacher_check import require_teacher
from runners.campaigns.step_metrics import step_metrics
from runners.campaigns.teaching import Teacher, add_teacher_logprobs
from runners.engines.contract import EngineError
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.request import RequestSampling
from runners.engines.embedded.server import EngineServer
from runners.engines.server_check import EngineUnfit
from runners.records.record import Turn
from runners.records.tokenizer import write_tiny_tokenizer
from runners.training.step_samples import StepSamples
from tests.fakes.step_samples import BRANCHED, build, rollouts
from tests.fakes.tiny_model import write_tiny_model

LONGEST = 128
"""Tokens that the teacher takes."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("teacher")
    write_tiny_model(found)
    return write_tiny_tokenizer(found)


@pytest.fixture
async def url(directory: Path) -> AsyncIterator[str]:
    core = EngineCore(directory, max_context_tokens=LONGEST, tokenizer=directory)
    runner = web.AppRunner(EngineServer(core).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
    core.shut_down()


@pytest.fixture
async def teacher(url: str) -> AsyncIterator[Teacher]:
    found = Teacher(url, deadline_s=20)
    yield found
    await found.close()


def with_teacher(url: str, *lines: str) -> Config:
    return compose([f"trainer.distill.url={url}", "sampling.temperature=1", *lines])


def a_step(*lengths: int) -> StepSamples:
    """Return a step of rollouts with BRANCHED's chains; the prompt of the first is so long."""

    def turns(session: str) -> list[Turn]:
        prompt = np.arange(lengths[int(session.split("-")[3])] - 2, dtype=np.int32)
        first = replace(BRANCHED[0], prompt_new=prompt)
        return [replace(turn, session_id=session) for turn in (first, *BRANCHED[1:])]

    records = rollouts(*(float(n % 2) for n in range(len(lengths))), sampled=10)
    return build(records, turns)


async def test_every_trained_token_of_a_step_has_the_teachers_logprob(
    teacher: Teacher, directory: Path
) -> None:
    step = a_step(5, 9)
    trainer = with_teacher(teacher.engine.name).trainer
    taught = await add_teacher_logprobs(step, teacher, trainer)
    core = EngineCore(directory, max_context_tokens=LONGEST)
    for before, after in zip(step.rollouts, taught.rollouts, strict=True):
        for sample, scored in zip(before, after, strict=True):
            nothing = RequestSampling(max_new_tokens=0)
            done = await core.run("x", sample.tokens, nothing, None, 0)
            assert done.input_logprobs is not None
            assert scored.teacher_logprobs is not None
            wanted = done.input_logprobs * sample.loss_mask
            assert np.allclose(scored.teacher_logprobs, wanted, atol=1e-6)
            assert scored.teacher_logprobs[sample.loss_mask].all()
    core.shut_down()
    assert not taught.unbuilt
    assert taught.in_loss == step.in_loss


async def test_a_rollout_that_the_teacher_cannot_score_trains_nothing_and_keeps_its_reward(
    teacher: Teacher,
) -> None:
    step = a_step(5, LONGEST + 9)
    trainer = with_teacher(teacher.engine.name).trainer
    taught = await add_teacher_logprobs(step, teacher, trainer)
    assert [len(samples) for samples in taught.rollouts] == [4, 0]
    lost, reason = next(iter(taught.unbuilt.items()))
    assert lost == step.records[1].rollout_id
    assert "teacher: " in reason
    assert "context" in reason
    assert [record.advantage for record in taught.records] == [-1.0, 1.0]
    assert [record.reward for record in taught.records] == [0.0, 1.0]
    assert taught.records[1].trained_tokens == 0
    metrics = step_metrics(taught, 1.0)
    assert (metrics["rollout/unbuilt"], metrics["tokens/in_loss"]) == (1, 8)
    assert sum(taught.trained.values()) == taught.records[0].trained_tokens == 8


async def test_a_teacher_that_is_gone_ends_the_step_as_a_lost_service() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    gone = Teacher(url, deadline_s=0.3)
    with pytest.raises(EngineError, match="continue with --resume") as caught:
        await add_teacher_logprobs(a_step(5, 9), gone, with_teacher(url).trainer)
    await gone.close()
    assert caught.value.exit_code == 4


async def test_a_step_without_samples_asks_nobody(teacher: Teacher) -> None:
    step = a_step()
    trainer = with_teacher(teacher.engine.name).trainer
    assert await add_teacher_logprobs(step, teacher, trainer) == step


async def test_a_teacher_that_fits_is_accepted(url: str, directory: Path) -> None:
    short = with_teacher(
        url, f"model.max_context_tokens={LONGEST - 1}", "sampling.max_new_tokens=9"
    )
    await require_teacher(short, directory)
    await require_teacher(short, None)
    full = with_teacher(url, f"model.max_context_tokens={LONGEST}", "sampling.max_new_tokens=9")
    with pytest.raises(EngineUnfit, match=f"the server takes {LONGEST} tokens"):
        await require_teacher(full, directory)
    await require_teacher(compose(["run.steps=1"]), directory)


async def test_a_teacher_with_another_tokenizer_or_a_short_context_is_refused_by_name(
    url: str, tmp_path: Path
) -> None:
    file = write_tiny_tokenizer(tmp_path) / "tokenizer.json"
    bytes_only = json.loads(file.read_text())
    bytes_only["model"]["merges"] = []
    file.write_text(json.dumps(bytes_only))
    with pytest.raises(EngineUnfit) as caught:
        await require_teacher(with_teacher(url), tmp_path)
    assert f"the server takes {LONGEST} tokens" in str(caught.value)
    assert "trainer.distill.url has to be a model with the policy's tokenizer" in str(caught.value)


async def test_a_teacher_that_does_not_answer_is_named_by_its_key() -> None:
    with pytest.raises(EngineError, match=r"teacher: .*trainer\.distill\.url"):
        await require_teacher(with_teacher("http://127.0.0.1:9"), None)
