"""The entry points, called as slime calls them: real gateway, sandboxes and grader; the policy is
scripted and stands behind a router as in slime.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

from agentrl.testing.completions import Completion, routed
from conf.errors import ConfigError
from runners.campaigns.slime import worker
from runners.campaigns.slime.entry_points import post_process_rewards
from runners.campaigns.slime.run_config import VARIABLE, find_run_dir
from runners.records.store.store_error import StoreError
from runners.records.tokenizer import tiny_tokenizer
from runners.rollouts.pool import BreakerOpen
from runners.services.driver import Interrupted
from runners.training.routing.shape import read_routing_shape
from tests.fakes.metrics_page import undocumented
from tests.fakes.slime_jobs import SAYS, Job, running_job, write_model
from tests.fakes.slime_rollout import (
    Sample,
    install_fake_modules,
    make_train_data,
)

pytestmark = pytest.mark.integration

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_job(tmp_path_factory: pytest.TempPathFactory, model: Path) -> AsyncIterator[Job]:
    async with running_job(tmp_path_factory.mktemp("job") / "run", model) as job:
        yield job


@pytest.fixture
def job(one_job: Job) -> Job:
    """The job of all tests, which take groups of their own; its engine answers again."""
    one_job.engine.always = Completion(SAYS)
    one_job.engine.seen.requests.clear()
    one_job.engine.seen.answered.clear()
    one_job.engine.arrived.clear()
    one_job.router.keys.clear()
    return one_job


@pytest.fixture(scope="module", autouse=True)
def _slime() -> None:
    install_fake_modules()


async def read_metrics(job: Job, step: int) -> dict[str, Any]:
    """Wait for a step's metrics."""
    while True:
        lines = map(json.loads, (job.run_dir / "metrics.jsonl").read_text().splitlines())
        for line in lines:
            if line["step"] == step:
                found: dict[str, Any] = line
                return found
        await asyncio.sleep(0.05)


@in_one_loop
async def test_the_groups_of_a_step_become_slime_s_training_data(job: Job) -> None:
    data = await job.train(1)
    assert data["rollout_ids"] == [0, 1, 2, 3]
    assert data["rewards"] == [0.0] * 4, "groups whose rewards are all equal teach nothing"
    with job.store() as store:
        counting = [r for r in store.rollouts(split="train", counts=True) if r.step == 1]
        records = {record.rollout_id: record for record in counting}
    assert sorted(records) == [
        *("train-000001-000-00", "train-000001-000-01"),
        *("train-000001-001-00", "train-000001-001-01"),
    ]
    keys = {key for key in job.router.keys if key is not None and not key.startswith("probe-")}
    assert keys == {record.session_id for record in records.values()}, "each is at one server"


@in_one_loop
async def test_a_step_that_slime_trains_on_is_recorded_with_its_metrics(job: Job) -> None:
    groups = await job.roll_out(51)
    await asyncio.to_thread(make_train_data, job.args, groups, post_process_rewards)
    line = await read_metrics(job, 51)
    sampled = sum(made.response_length for group in groups for (made,) in group)
    assert (line["tokens/sampled"], line["tokens/in_loss"]) == (sampled, sampled)
    assert (line["rollout/groups"], line["rollout/groups_flat"]) == (2, 2)
    assert (line["tokens/trained"], line["policy/staleness_max"]) == (0, 50)
    assert not undocumented(set(line))
    status = json.loads((job.run_dir / "status.json").read_text())
    assert status["state"] == "running"
    assert status["metrics"].items() <= line.items()
    with job.store() as store:
        (tasks,) = [row.tasks for row in store.steps() if row.step == 51]
        assert sorted(tasks) == sorted(job.tasks)
        (record, *_) = [r for r in store.rollouts(counts=True) if r.step == 51]
        assert (record.advantage, record.trained_tokens) == (0.0, 0)


@in_one_loop
async def test_the_gateway_s_address_is_published_without_its_key(job: Job) -> None:
    await job.roll_out(45)
    gateway = json.loads((job.run_dir / "gateway.json").read_text())
    assert set(gateway) == {"url", "urls", "public_url", "node", "since"}
    assert gateway["node"] == socket.gethostname()
    url = f"{gateway['url']}/admin/sessions"
    async with aiohttp.ClientSession() as client, client.post(url, json={}) as reply:
        assert reply.status == 401, "it is the gateway, and it knows nobody without a key"


@in_one_loop
async def test_an_evaluation_before_training_and_one_after_it_are_two(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        first = await job.evaluate(0)
        asked = len(job.engine.seen.requests)
        again = await job.evaluate(0)
        assert len(job.engine.seen.requests) == asked, "a job that is started anew asks no more"
        assert [len(found["held_out"]["samples"]) for found in (first, again)] == [2, 2]
        await job.train(1)
        await job.evaluate(0)
        with job.store() as store:
            assert [row.step for row in store.evaluations()] == [0, 1]
        await job.close()
        with job.store() as store:
            state = store.state()
            assert (state.state, [row.state for row in store.steps()]) == ("done", ["done"])


@in_one_loop
async def test_the_turns_of_a_step_are_read_once(tmp_path: Path, model: Path) -> None:
    async with running_job(tmp_path / "run", model) as job:
        groups = await job.roll_out(1)
        (job.run_dir / "arrays" / "turns.bin").write_bytes(b"")  # a second look would find this
        await asyncio.to_thread(make_train_data, job.args, groups, post_process_rewards)
        await job.close()
        with job.store() as store:
            (step,) = store.steps()
        assert step.metrics["rollout/unbuilt"] == 0
        assert step.metrics["tokens/in_loss"] == step.metrics["tokens/sampled"] > 0


@in_one_loop
async def test_a_stored_rollout_that_cannot_be_read_becomes_the_constant_placeholder(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        await job.roll_out(1)
        await job.close()
        (arrays,) = job.run_dir.glob("arrays/turns.bin")
        arrays.write_bytes(b"\xff" * arrays.stat().st_size)
        job.engine.seen.requests.clear()
        for group in await job.roll_out(1):
            for (made,) in group:
                assert made.status is Sample.Status.FAILED
                assert (made.tokens, made.loss_mask, made.remove_sample) == ([0, 0], [0], True)
                assert made.metadata["agentrl"]["outcome"] == "policy.gave_up"
        asked = [request["rid"] for request in job.engine.seen.requests]
        assert all(rid.startswith("probe-") for rid in asked), "nothing is run again"
        with job.store() as store:
            assert len(store.events("unbuilt")) == 4


@in_one_loop
async def test_an_evaluation_counts_the_reward_of_a_rollout_that_cannot_be_read(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        before = await job.evaluate(0)
        await job.close()
        (arrays,) = job.run_dir.glob("arrays/turns.bin")
        arrays.write_bytes(b"\xff" * arrays.stat().st_size)
        after = await job.evaluate(0)
        assert after["held_out"]["rewards"] == before["held_out"]["rewards"]
        with job.store() as store:
            assert len(store.events("unbuilt")) == len(after["held_out"]["rewards"])


@in_one_loop
async def test_a_status_that_cannot_be_written_leaves_no_gateway_behind(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        await job.roll_out(1)
        gateway = urlsplit(json.loads((job.run_dir / "gateway.json").read_text())["url"])
        (job.run_dir / "status.json").unlink()
        (job.run_dir / "status.json").mkdir()
        with pytest.raises(StoreError):
            await job.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((gateway.hostname, gateway.port), timeout=5)


@in_one_loop
async def test_a_sample_has_every_field_as_slime_wants_it(job: Job) -> None:
    ((first, *_), *_) = await job.roll_out(7)
    (made,) = first
    answer = tiny_tokenizer().encode(SAYS, add_special_tokens=False).ids
    about = made.metadata["agentrl"]
    with job.store() as store:
        (record,) = [r for r in store.rollouts(counts=True) if r.rollout_id == about["rollout"]]
        (turn,) = store.turns(record.session_id)
    assert (made.group_index, made.index, made.rollout_id) == (12, 24, 24), "over the whole job"
    assert made.tokens == [*turn.prompt_new, *answer]
    assert made.response_length == len(answer)
    assert made.response == tiny_tokenizer().decode(answer, skip_special_tokens=False)
    assert made.loss_mask == [1] * len(answer)
    assert made.rollout_log_probs == pytest.approx(turn.output_logprobs)
    assert made.weight_versions == ["0"], "slime's first weights are those after no step"
    assert made.rollout_routed_experts is None
    assert made.status is Sample.Status.COMPLETED
    assert made.remove_sample is False
    assert made.label == made.metadata["instance_id"] == record.task_id
    assert (about["kind"], about["share"], about["graded"]) == ("final", 1.0, True)
    assert made.session_id == record.session_id
    assert made.reward == record.reward
    assert (record.step, record.group, record.member) == (7, 0, 0)


@in_one_loop
async def test_slimes_evaluation_measures_the_held_out_tasks(job: Job) -> None:
    held_out = (await job.evaluate(400))["held_out"]
    assert len(held_out["rewards"]) == len(held_out["samples"]) == 2
    assert held_out["truncated"] == [False, False]
    assert held_out["agentrl_failed"] == 0
    with job.store() as store:
        assert len([r for r in store.rollouts(split="eval") if r.step == 400]) == 2


@in_one_loop
async def test_groups_without_a_grade_keep_their_place_and_move_no_baseline(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model, "rollout.spare_groups=0") as job:
        await job.train(1)
        job.engine.always = None  # the engine answers 500
        groups = await job.roll_out(2)
        assert len(groups) == 2
        for group in groups:
            for (made,) in group:
                assert made.status is Sample.Status.FAILED
                assert made.remove_sample
                assert (made.loss_mask, made.rollout_log_probs) == ([0], [0.0])
                assert made.metadata["agentrl"]["outcome"].startswith("infra.")
        data = make_train_data(job.args, groups, post_process_rewards)
        assert data["rewards"] == [0.0] * 4


@in_one_loop
async def test_flat_groups_are_replaced_and_those_that_nothing_replaces_have_no_weight(
    tmp_path: Path, model: Path
) -> None:
    flat = ("rollout.replace_flat=true", "rollout.spare_groups=1")
    async with running_job(tmp_path / "run", model, *flat) as job:
        groups = await job.roll_out(1)
        assert len(groups) == 2, "slime counts them"
        assert all(made.remove_sample for group in groups for (made,) in group)
        make_train_data(job.args, groups, post_process_rewards)
        line = await read_metrics(job, 1)
        assert (line["rollout/groups"], line["rollout/groups_flat"]) == (3, 3)
        assert line["tokens/in_loss"] == 0


@in_one_loop
async def test_too_many_failures_in_a_row_end_the_job(tmp_path: Path, model: Path) -> None:
    async with running_job(tmp_path / "run", model, "rollout.breaker=2") as job:
        await job.roll_out(1)
        job.engine.always = None
        with pytest.raises(BreakerOpen, match="2 attempts in a row"):
            await job.roll_out(2)


@in_one_loop
async def test_what_runs_when_the_process_ends_is_stored_and_is_a_new_attempt_afterwards(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        await job.roll_out(1)
        job.engine.arrived.clear()
        job.engine.always = Completion(SAYS, delay_s=60.0)
        pending = asyncio.create_task(job.roll_out(2))
        await job.engine.arrived.wait()
        ends = worker._workers[job.run_dir].result()._close_at_exit
        await asyncio.to_thread(ends)
        worker._workers.pop(job.run_dir)
        with pytest.raises(Interrupted):
            await pending
        job.engine.always = Completion(SAYS)
        await job.roll_out(1)
        await job.roll_out(2)
        with job.store() as store:
            found = {
                (record.attempt, record.outcome.code.value) for record in store.rollouts(step=2)
            }
    assert (0, "cancelled.user") in found
    assert (1, "policy.gave_up") in found


@in_one_loop
async def test_routing_passes_by_the_router_and_has_a_row_for_all_tokens_but_the_last(
    tmp_path: Path, model: Path
) -> None:
    shape = read_routing_shape(model)
    assert shape is not None
    async with running_job(tmp_path / "run", model, "routing_replay=rollout") as job:
        job.engine.shape = shape
        job.args.use_rollout_routing_replay = True
        job.args.num_layers, job.args.moe_router_topk = shape.layers, shape.top_k
        job.args.moe_layers = shape.routed
        groups = await job.roll_out(1)
        job.engine.always = None
        failed = await job.roll_out(2)
        ((first,), *_) = groups[0]
        ((second,), *_) = failed[0]
        assert [first.remove_sample, second.remove_sample] == [False, True]
        make_train_data(job.args, [groups[0], failed[0]], post_process_rewards)
        assert job.router.keys == []
        sent = routed(shape, first.tokens[:-1], version=1)
        assert (first.rollout_routed_experts == sent).all()


def test_the_run_directory_is_named_by_the_arguments_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="agentrl_run_dir"):
        find_run_dir(Namespace())
    monkeypatch.setenv(VARIABLE, "/a")
    assert find_run_dir(Namespace()) == Path("/a")
    assert find_run_dir(Namespace(agentrl_run_dir="/b")) == Path("/b")


def test_entry_points_import_nothing_heavy_and_load_by_their_path(tmp_path: Path) -> None:
    file = Path(worker.__file__).with_name("entry_points.py")
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('plug', {str(file)!r})\n"
        "plug = importlib.util.module_from_spec(spec); spec.loader.exec_module(plug)\n"
        "heavy = {'runners', 'torch', 'numpy', 'aiohttp', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "plug._ensure_importable()\n"
        "import runners\n"
    )
    subprocess.run([sys.executable, "-S", "-E", "-c", code], cwd=tmp_path, check=True)
