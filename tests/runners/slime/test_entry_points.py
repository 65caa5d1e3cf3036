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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

from conf.compose import compose, to_json
from conf.errors import ConfigError
from runners.slime import worker
from runners.slime.entry_points import VARIABLE, evaluate, generate, post_process_rewards, run_dir
from runners.store.run_store import RunStore
from runners.store.store_error import StoreError
from runners.tasks.task_sets import load_tasks
from runners.testing.completions import Completion, routed, spoken
from runners.testing.scripted_engine import ScriptedEngine
from runners.testing.tiny_tokenizer import tiny_tokenizer, write_tiny_tokenizer
from runners.training.routing.shape import read_routing_shape
from tests.fakes.metrics_page import undocumented
from tests.fakes.sglang_router import Router
from tests.fakes.slime_rollout import Sample, make_groups, make_train_data, run_group, run_rollout
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

in_one_loop = pytest.mark.asyncio(loop_scope="module")
SAYS = spoken([{"type": "text", "text": "I give up."}])
SMALL = (
    *("run.steps=1", "run.tasks_per_step=2", "run.rollouts_per_task=2", "run.eval_tasks=2"),
    *("task.train_tasks=2", "task.held_out_tasks=2", "rollout.attempts=1"),
    *("rollout.breaker=50", "trainer.minibatches=1", "rollout.limits.engine_attempts=1"),
)


@dataclass
class Job:
    """The parts of a slime job that rollouts use."""

    args: Namespace
    engine: ScriptedEngine
    router: Router
    run_dir: Path
    tasks: list[str]

    def store(self) -> RunStore:
        return RunStore.open(self.run_dir, read_only=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_tokenizer(directory)
    return write_tiny_model(directory, vocab_size=tiny_tokenizer().get_vocab_size())


def write_run(run_dir: Path, model: Path, *overrides: str) -> list[str]:
    """Write a run directory as a launcher does; returns the ids of its training tasks."""
    config = compose([f"model.path='{model}'", f"model.tokenizer='{model}'", *SMALL, *overrides])
    run_dir.mkdir()
    (run_dir / "config.json").write_text(to_json(config))
    tasks = load_tasks(config)
    return [task.id for task in tasks if task.split == "train"]


@asynccontextmanager
async def running_job(run_dir: Path, model: Path, *overrides: str) -> AsyncIterator[Job]:
    tasks = write_run(run_dir, model, *overrides)
    async with ScriptedEngine() as engine, Router(engine) as router:
        host, port = router.address
        args = Namespace(
            sglang_router_ip=host,
            sglang_router_port=port,
            hf_checkpoint=str(model),
            rollout_batch_size=2,
            n_samples_per_prompt=2,
            use_rollout_routing_replay=False,
            agentrl_run_dir=str(run_dir),
        )
        engine.always = Completion(SAYS)
        yield Job(args, engine, router, run_dir, tasks)
        await worker.close(run_dir)


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


@in_one_loop
async def test_concurrent_groups_become_slime_s_training_data(job: Job) -> None:
    groups = make_groups(job.tasks, 2)
    done = await asyncio.gather(*(run_group(job.args, group, generate) for group in groups))
    data = make_train_data(job.args, done, post_process_rewards)
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
    groups = make_groups(job.tasks, 2, first=100)
    done = await asyncio.gather(*(run_group(job.args, group, generate) for group in groups))
    # slime takes the rewards on another thread than the one its rollouts are on.
    await asyncio.to_thread(make_train_data, job.args, done, post_process_rewards)
    lines: list[dict[str, Any]] = []
    while not any(line["step"] == 51 for line in lines):
        await asyncio.sleep(0.05)
        lines = [*map(json.loads, (job.run_dir / "metrics.jsonl").read_text().splitlines())]
    (line,) = [line for line in lines if line["step"] == 51]
    sampled = sum(made.response_length for group in done for (made,) in group)
    assert (line["tokens/sampled"], line["tokens/in_loss"]) == (sampled, sampled)
    assert (line["rollout/groups"], line["rollout/groups_flat"], line["tokens/trained"]) == (
        2,
        2,
        0,
    )
    assert not undocumented(set(line))
    status = json.loads((job.run_dir / "status.json").read_text())
    assert (status["state"], status["steps"]) == ("running", 1)
    assert status["metrics"].items() <= line.items()
    with job.store() as store:
        assert [row.tasks for row in store.steps() if row.step == 51] == [job.tasks]
        (record, *_) = [r for r in store.rollouts(counts=True) if r.step == 51]
        assert (record.advantage, record.trained_tokens) == (0.0, 0)


@in_one_loop
async def test_the_gateway_s_address_is_published_without_its_key(job: Job) -> None:
    ((made,),) = [
        await run_rollout(job.args, make_groups(job.tasks[:1], 1, first=90)[0][0], generate)
    ]
    assert made.status is Sample.Status.COMPLETED
    gateway = json.loads((job.run_dir / "gateway.json").read_text())
    assert set(gateway) == {"url", "public_url", "node", "since"}
    assert gateway["node"] == socket.gethostname()
    url = f"{gateway['url']}/admin/sessions"
    async with aiohttp.ClientSession() as client, client.post(url, json={}) as reply:
        assert reply.status == 401, "it is the gateway, and it knows nobody without a key"


@in_one_loop
async def test_an_evaluation_before_training_and_one_after_it_are_two(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        started = await worker.get_worker(job.args, job.run_dir)
        first = await started.evaluate(Sample, 0)
        asked = len(job.engine.seen.requests)
        again = await started.evaluate(Sample, 0)
        assert len(job.engine.seen.requests) == asked, "a job that is started anew asks no more"
        assert [len(found["held_out"]["samples"]) for found in (first, again)] == [2, 2]
        groups = make_groups(job.tasks, 2)
        done = [await run_group(job.args, group, generate) for group in groups]
        make_train_data(job.args, done, post_process_rewards)
        await started.evaluate(Sample, 0)
        with job.store() as store:
            assert [row.step for row in store.evaluations()] == [0, 1]
        await worker.close(job.run_dir)
        with job.store() as store:
            state = store.state()
            assert (state.state, [row.state for row in store.steps()]) == ("done", ["done"])


@in_one_loop
async def test_the_turns_of_a_step_are_read_once(tmp_path: Path, model: Path) -> None:
    async with running_job(tmp_path / "run", model) as job:
        groups = make_groups(job.tasks, 2)
        done = [await run_group(job.args, group, generate) for group in groups]
        (job.run_dir / "arrays" / "turns.bin").write_bytes(b"")  # a second look would find this
        make_train_data(job.args, done, post_process_rewards)
        await worker.close(job.run_dir)
        with job.store() as store:
            (step,) = store.steps()
        assert step.metrics["rollout/unbuilt"] == 0
        assert step.metrics["tokens/in_loss"] == step.metrics["tokens/sampled"] > 0


@in_one_loop
async def test_a_stored_rollout_that_cannot_be_read_becomes_the_constant_placeholder(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        (group,) = make_groups(job.tasks[:1], 2)
        await run_group(job.args, group, generate)
        await worker.close(job.run_dir)
        (arrays,) = job.run_dir.glob("arrays/turns.bin")
        arrays.write_bytes(b"\xff" * arrays.stat().st_size)
        job.engine.seen.requests.clear()
        for (made,) in await run_group(job.args, group, generate):
            assert made.status is Sample.Status.ABORTED
            assert (made.tokens, made.loss_mask, made.remove_sample) == ([0, 0], [0], True)
            assert made.metadata["agentrl"]["outcome"] == "policy.gave_up"
        asked = [request["rid"] for request in job.engine.seen.requests]
        assert all(rid.startswith("probe-") for rid in asked), "nothing is run again"
        with job.store() as store:
            assert len(store.events("unbuilt")) == 2


@in_one_loop
async def test_a_status_that_cannot_be_written_leaves_no_gateway_behind(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model) as job:
        await worker.get_worker(job.args, job.run_dir)
        gateway = urlsplit(json.loads((job.run_dir / "gateway.json").read_text())["url"])
        (job.run_dir / "status.json").unlink()
        (job.run_dir / "status.json").mkdir()
        with pytest.raises(StoreError):
            await worker.close(job.run_dir)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((gateway.hostname, gateway.port), timeout=5)


@in_one_loop
async def test_a_sample_has_every_field_as_slime_wants_it(job: Job) -> None:
    (group,) = make_groups(job.tasks[:1], 1, first=13)
    ((made,),) = await run_group(job.args, group, generate)
    answer = tiny_tokenizer().encode(SAYS, add_special_tokens=False).ids
    prompt = job.engine.seen.requests[0]["input_ids"]
    _, logprobs = job.engine.seen.answered[0]
    assert made is not group[0], "an attempt leaves slime's own sample alone"
    assert (made.group_index, made.index, made.rollout_id) == (13, 13, 13)
    assert made.tokens == prompt + answer
    assert made.response_length == len(answer)
    assert made.response == tiny_tokenizer().decode(answer, skip_special_tokens=False)
    assert made.loss_mask == [1] * len(answer)
    assert made.rollout_log_probs == pytest.approx(logprobs)
    assert made.weight_versions == ["1"]
    assert made.rollout_routed_experts is None
    assert made.status is Sample.Status.COMPLETED
    assert made.remove_sample is False
    assert (made.prompt, made.label) == ("Fix it.", job.tasks[0])
    about = made.metadata["agentrl"]
    assert made.metadata["instance_id"] == job.tasks[0]
    assert (about["kind"], about["share"], about["graded"]) == ("final", 1.0, True)
    with job.store() as store:
        (record,) = [r for r in store.rollouts(counts=True) if r.rollout_id == about["rollout"]]
    assert (about["rollout"], made.session_id) == (record.rollout_id, record.session_id)
    assert made.reward == record.reward
    assert (record.step, record.group) == (7, 1), "slime numbers groups over the whole job"


@in_one_loop
async def test_an_evaluation_gives_one_sample_and_its_own_records(job: Job) -> None:
    sample = Sample(index=70, prompt="Fix it.", metadata={"instance_id": job.tasks[0]})
    twice = [await run_rollout(job.args, sample, generate, evaluation=True) for _ in range(2)]
    assert [len(made) for made in twice] == [1, 1]
    with job.store() as store:
        records = store.rollouts(split="eval", counts=True)
    found = [record.rollout_id for record in records if record.group == 70]
    assert [name.rpartition("-070-")[2] for name in found] == ["00", "01"]


@in_one_loop
async def test_slimes_evaluation_measures_the_held_out_tasks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    types, async_utils = ModuleType("slime.utils.types"), ModuleType("slime.utils.async_utils")
    types.Sample = Sample  # type: ignore[attr-defined]
    async_utils.run = lambda work: (  # type: ignore[attr-defined]
        asyncio.run_coroutine_threadsafe(work, loop).result()
    )
    for module in (ModuleType("slime"), ModuleType("slime.utils"), types, async_utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    measured = await asyncio.to_thread(evaluate, job.args, 400, None, evaluation=True)
    held_out = measured["held_out"]
    assert len(held_out["rewards"]) == len(held_out["samples"]) == 2
    assert held_out["truncated"] == [False, False]
    assert held_out["agentrl_failed"] == 0
    with job.store() as store:
        assert len([r for r in store.rollouts(split="eval") if r.step == 400]) == 2


@in_one_loop
async def test_a_rollout_without_a_grade_keeps_its_place_and_moves_no_baseline(job: Job) -> None:
    job.engine.always = None  # the engine answers 500
    (group,) = make_groups(job.tasks[:1], 2, first=20)
    done = await run_group(job.args, group, generate)
    for (made,) in done:
        assert made.status is Sample.Status.ABORTED
        assert made.remove_sample
        assert (made.loss_mask, made.rollout_log_probs) == ([0], [0.0])
        assert made.metadata["agentrl"]["outcome"].startswith("infra.")
    data = make_train_data(job.args, [done], post_process_rewards)
    assert data["rewards"] == [0.0, 0.0]


@in_one_loop
async def test_a_rollout_that_slime_cancels_is_stored_and_gone_when_it_returns(job: Job) -> None:
    job.engine.always = Completion(SAYS, delay_s=60.0)
    (group,) = make_groups(job.tasks[:1], 2, first=30)
    pending = asyncio.create_task(run_group(job.args, group, generate))
    await job.engine.arrived.wait()
    pending.cancel()
    (ended,) = await asyncio.gather(pending, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
    job.engine.always = Completion(SAYS)
    ((made,),) = await run_group(job.args, make_groups(job.tasks[:1], 2, first=30)[0][:1], generate)
    assert made.status is Sample.Status.COMPLETED, "the same sample is a new attempt"
    with job.store() as store:
        codes = {
            (r.session_id[-2:], r.outcome.code.value) for r in store.rollouts() if r.step == 16
        }
    assert ("a0", "cancelled.user") in codes
    assert ("a1", "policy.gave_up") in codes


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
        (group,) = make_groups(job.tasks[:1], 2)
        first = await run_rollout(job.args, group[0], generate)
        job.engine.always = None
        second = await run_rollout(job.args, group[1], generate)
    assert [first[0].remove_sample, second[0].remove_sample] == [False, True]
    make_train_data(job.args, [[first, second]], post_process_rewards)
    assert job.router.keys == []
    sent = routed(shape, first[0].tokens[:-1], version=1)
    assert (first[0].rollout_routed_experts == sent).all()


@in_one_loop
async def test_a_task_that_the_run_does_not_know_ends_the_job(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"names \['nobody'.*--prompt-data"):
        await run_rollout(job.args, make_groups(["nobody"], 1)[0][0], generate)


def test_the_run_directory_is_named_by_the_arguments_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="agentrl_run_dir"):
        run_dir(Namespace())
    monkeypatch.setenv(VARIABLE, "/a")
    assert run_dir(Namespace()) == Path("/a")
    assert run_dir(Namespace(agentrl_run_dir="/b")) == Path("/b")


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
