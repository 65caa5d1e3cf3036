"""Asynchronous campaigns with real processes: ages, versions of tokens, kills, the same bits."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from runners.campaigns.what_if.what_if import ask_what_if
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.server import EngineServer
from runners.records.checkpoints import CHECKPOINTS, directory_name
from runners.records.graph import build_segments
from runners.records.record import Segment
from runners.records.store.run_store import RunStore
from tests.fakes.tiny_model import policy_logprobs
from tests.runners.campaigns.account import account, differences
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration

STEPS = 4
FEW = [
    *(f"run.steps={STEPS}", "run.tasks_per_step=2", "run.rollouts_per_task=2", "run.eval_tasks=0"),
    *("scenario=linear", "harness.max_turns=2", "trainer.threads=1", "trainer.entropy_bonus=0.1"),
    *("trainer.learning_rate=1e-2", "trainer.correction.truncate=token", "rollout.concurrency=3"),
    *(f"run.keep_checkpoints={STEPS + 1}", "sampling.temperature=1.0"),
]
STEP = [*FEW, "run.overlap=step"]
STREAM = [
    *(*FEW, "run.overlap=stream", "run.staleness=2", "run.window=2"),
    "sampling.max_new_tokens=300",  # turns under which weights change
]


def metrics(mini: Miniature, name: str) -> list[float]:
    lines = (mini.run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


def assert_trained_once(store: RunStore) -> None:
    batches = [body for kind, body in store.schedule() if kind == "batch"]
    groups = [group for batch in batches for group in batch["groups"]]
    assert [batch["number"] for batch in batches] == list(range(1, STEPS + 1))
    assert sorted(groups) == list(range(2 * STEPS))
    assert [row.state for row in store.steps()] == ["done"] * STEPS


@pytest.fixture(scope="module")
def step(
    tmp_path_factory: pytest.TempPathFactory, cache: Path, untrained_policy: Path
) -> Miniature:
    """A finished run of step, for tests that only read it."""
    mini = Miniature(tmp_path_factory.mktemp("step") / "run", cache, untrained_policy)
    mini.finish(mini.begin(*STEP))
    return mini


KILLED_IN = pytest.mark.parametrize(
    "steps",
    [
        pytest.param((2,), id="2"),
        pytest.param(range(1, STEPS), marks=pytest.mark.slow, id="every-step"),
    ],
)
"""Steps in which a run is killed; each kill is a start more."""


@KILLED_IN
def test_a_killed_run_of_step_is_the_undisturbed_one_bit_for_bit(
    miniature: Miniature, step: Miniature, steps: Sequence[int]
) -> None:
    driver = miniature.begin(*STEP)
    for number in steps:
        miniature.wait_until(
            lambda store, number=number: any(  # type: ignore[misc]
                kind == "batch" and body["number"] == number for kind, body in store.schedule()
            ),
            driver,
        )
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        driver = miniature.resume()
    miniature.finish(driver)
    assert metrics(miniature, "policy/staleness_mean") == [0.0] + [1.0] * (STEPS - 1)
    with step.store() as one, miniature.store() as other:
        assert_trained_once(other)
        found = differences(account(one), account(other))
    assert found == []


def trained_segments(store: RunStore) -> Iterator[Segment]:
    for record in store.rollouts(counts=True):
        yield from build_segments(store.turns(record.session_id))


@asynccontextmanager
async def serve_engine(model: Path) -> AsyncIterator[str]:
    """Serve an engine as an SGLang server that a run did not start; yield its URL."""
    core = EngineCore(model, max_context_tokens=4096, tokenizer=model, threads=1)
    runner = web.AppRunner(
        EngineServer(core).application(), handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        core.shut_down()


@pytest.fixture(scope="module")
def stream(
    tmp_path_factory: pytest.TempPathFactory, cache: Path, untrained_policy: Path
) -> Miniature:
    """A finished run of stream, for tests that only read it."""
    mini = Miniature(tmp_path_factory.mktemp("stream") / "run", cache, untrained_policy)
    mini.finish(mini.begin(*STREAM))
    return mini


def test_the_schedule_of_a_stream_tells_what_each_step_was_trained_on(stream: Miniature) -> None:
    found = ask_what_if(stream.run_dir, ["fanout=collapse"])
    assert (found.not_reproduced, len(found.steps)) == ([], STEPS)


def test_in_stream_each_token_is_of_the_weights_that_its_version_names(stream: Miniature) -> None:
    check_versions(stream)


async def test_an_sglang_server_s_turns_are_aborted_and_continued_with_versions_as_exact(
    miniature: Miniature,
) -> None:
    async with serve_engine(miniature.policy) as url:
        served = ["model=tiny", "engine=sglang", f"engine.url={url}"]
        await asyncio.to_thread(lambda: miniature.finish(miniature.begin(*served, *STREAM)))
    check_versions(miniature)


def check_versions(stream: Miniature) -> None:
    """Recompute all logprobs; a falsified span is seen: under other weights they differ."""
    assert max(metrics(stream, "policy/staleness_max")) in (1, 2)
    mixed = falsified = 0
    with stream.store() as store:
        assert_trained_once(store)
        for segment in trained_segments(store):
            versions = segment.weight_versions
            at = segment.loss_mask
            known = sorted(set(versions[at].tolist()))
            found = {v: policy_logprobs(_weights(stream, v), segment.tokens) for v in known}
            expected = np.select([versions == v for v in known], [found[v] for v in known])
            assert np.abs(segment.logprobs - expected)[at].max() < 1e-4
            if len(known) > 1:
                mixed += 1
                first = at & (versions == known[0])
                wrong = np.abs(segment.logprobs - found[known[1]])[first].max()
                falsified += bool(wrong > 1e-2)
        spans = [turn for r in store.rollouts(counts=True) for turn in store.turns(r.session_id)]
    assert mixed, "weights were switched under a rollout"
    assert falsified == mixed
    assert any(turn.weight_spans for turn in spans), "and under a turn"


def _weights(mini: Miniature, version: int) -> Path:
    if not version:
        return mini.policy
    return mini.run_dir / CHECKPOINTS / directory_name(version)


@KILLED_IN
def test_a_killed_run_of_stream_trains_every_group_once_and_is_its_own_replay(
    miniature: Miniature, tmp_path: Path, steps: Sequence[int]
) -> None:
    driver = miniature.begin(*STREAM)
    for number in steps:
        path = _weights(miniature, number)
        miniature.wait_until(lambda _, path=path: path.is_dir(), driver)  # type: ignore[misc]
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        driver = miniature.resume()
    miniature.finish(driver)
    assert max(metrics(miniature, "policy/staleness_max")) <= 2
    replay = start_replay(miniature, tmp_path / "replay")
    with miniature.store() as one, replay.store() as other:
        assert_trained_once(one)
        assert account(one)["checkpoints"] == account(other)["checkpoints"]


def start_replay(recorded: Miniature, run_dir: Path) -> Miniature:
    """Replay a run with other timing: with more rollouts at once."""
    replay = Miniature(run_dir, recorded.cache, recorded.policy)
    replay.finish(
        replay.start(
            *("--replay-schedule", str(recorded.run_dir), f"run.dir={run_dir}"),
            "rollout.concurrency=16",
        )
    )
    return replay


@pytest.mark.parametrize(
    "mode",
    [pytest.param(STEP, marks=pytest.mark.slow, id="step"), pytest.param(STREAM, id="stream")],
)
def test_ctrl_c_ends_an_asynchronous_run_after_its_step_and_it_goes_on(
    miniature: Miniature, mode: list[str]
) -> None:
    driver = miniature.begin(*mode)
    miniature.wait_until(lambda store: any(k == "batch" for k, _ in store.schedule()), driver)
    driver.send_signal(signal.SIGINT)
    document = miniature.finish(driver, code=130)
    assert 1 <= document["steps"] < STEPS
    assert miniature.finish(miniature.resume())["steps"] == STEPS
    with miniature.store() as store:
        assert_trained_once(store)


@pytest.mark.slow  # two campaigns; overlap/test_steps.py has the order of the same calls
def test_a_staleness_of_zero_is_to_take_turns_bit_for_bit(
    miniature: Miniature, tmp_path: Path
) -> None:
    turns = Miniature(tmp_path / "turns", miniature.cache, miniature.policy)
    turns.finish(turns.begin(*FEW))
    miniature.finish(miniature.begin(*FEW, "run.overlap=stream", "run.staleness=0"))
    with turns.store() as one, miniature.store() as other:
        assert differences(account(one), account(other)) == []


def test_a_replay_of_a_stream_has_its_checkpoints_bit_for_bit(
    stream: Miniature, tmp_path: Path
) -> None:
    replay = start_replay(stream, tmp_path / "replay")
    with stream.store() as one, replay.store() as other:
        assert_trained_once(other)
        versions = [
            [turn.output_versions.tolist() for turn in each.turns(record.session_id)]
            for each in (one, other)
            for record in each.rollouts(counts=True)
        ]
        assert versions[: len(versions) // 2] == versions[len(versions) // 2 :]
        assert differences(account(one), account(other)) == []
    again = replay.resume()
    _, err = again.communicate()
    assert again.returncode != 0
    assert b"give --replay-schedule again" in err


@pytest.mark.slow  # the runs of each seed, and their replays
@pytest.mark.parametrize("mode", [STEP, STREAM], ids=["step", "stream"])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_replay_has_the_checkpoints_of_its_run_with_any_seed(
    miniature: Miniature, tmp_path: Path, mode: list[str], seed: int
) -> None:
    miniature.finish(miniature.begin(*mode, f"seed={seed}"))
    replay = start_replay(miniature, tmp_path / "replay")
    with miniature.store() as one, replay.store() as other:
        assert len(account(one)["checkpoints"]) == STEPS
        assert account(one)["checkpoints"] == account(other)["checkpoints"]
