"""Sessions of a gateway that serves alone: each ends as a rollout that the exports read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.refusal import GatewayError
from runners.gateway.sessions.session_rollouts import keep_lost
from runners.observe.export import dump
from runners.observe.export.jsonl import validate
from runners.records.outcome import OutcomeCode
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from tests.fakes.running_gateway import Gateway, echo, running_gateway, user


@pytest.fixture
async def alone(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway without a campaign."""
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", keep_rollouts=True
    ) as gateway:
        yield gateway


def rollouts(gateway: Gateway) -> dict[str, RolloutRecord]:
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        return {record.rollout_id: record for record in store.rollouts(counts=True)}


async def test_a_finished_session_is_exported_with_its_reward_and_exact_tokens(
    alone: Gateway, engine: ScriptedEngine, tmp_path: Path
) -> None:
    agent = await alone.session("s1", task="greet")
    engine.say(f"hello{END}", f"again{END}")
    first = await agent.ask([user("hi")])
    await agent.ask([user("hi"), echo(first), user("once more")])
    ended = await alone.admin.finish("s1", reward=0.25)
    kept = {"rollout_id": "s1", "task": "greet", "outcome": "policy.finished", "message": ""}
    assert ended["rollout"] == kept | {"reward": 0.25}
    (chain,) = ended["segments"]
    with RunStore.open(alone.run_dir, read_only=True) as store:
        report = dump(store, tmp_path / "dump", formats=("jsonl", "slime"))
    file = tmp_path / "dump" / "trajectories.jsonl"
    assert report.rollouts == 1
    assert validate(file) == []
    line = json.loads(file.read_text())
    assert line["reward"] == {"score": 0.25, "solved": None, "counted": True}
    assert (line["task"], line["group"], line["member"]) == ("greet", 0, 0)
    (segment,) = line["segments"]
    assert segment["tokens"] == chain["tokens"]
    assert segment["logprobs"] == chain["logprobs"]
    assert sum(segment["loss_mask"]) == ended["stats"]["sampled_tokens"] > 0
    sample = json.loads((tmp_path / "dump" / "slime" / "samples.jsonl").read_text())
    assert (sample["reward"], sample["remove_sample"]) == (0.25, False)


async def test_sessions_of_one_task_are_a_group(alone: Gateway) -> None:
    for name, task in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None)):
        await alone.admin.create_session(name, task=task)
        await alone.admin.finish(name)
    places = {name: (r.task_id, r.group, r.member) for name, r in rollouts(alone).items()}
    assert places == {"a": ("x", 0, 0), "b": ("y", 1, 0), "c": ("x", 0, 1), "d": ("d", 2, 0)}


async def test_a_repeated_finish_keeps_the_reward_and_another_one_is_refused(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    agent = await alone.session()
    engine.say(f"hello{END}")
    await agent.ask([user("hi")])
    for reward in (None, 0.5, 0.5, None):
        await alone.admin.finish("s1", reward=reward)
    with pytest.raises(GatewayError, match=r"was finished with 0\.5"):
        await alone.admin.finish("s1", reward=1.0)
    await alone.admin.delete("s1")
    assert rollouts(alone)["s1"].reward == 0.5
    assert rollouts(alone)["s1"].outcome.code is OutcomeCode.POLICY_FINISHED


async def test_a_session_whose_engine_failed_has_no_reward(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    agent = await alone.session()
    engine.say(f"hello{END}")
    first = await agent.ask([user("hi")])
    engine.say(Completion(status=500))
    body = agent.body([user("hi"), echo(first), user("more")])
    assert (await agent.post("/v1/messages", body))[0] >= 500
    ended = await alone.admin.finish("s1", reward=0.0)
    assert ended["rollout"]["outcome"] == "infra.model"
    assert ended["rollout"]["reward"] is None
    assert rollouts(alone)["s1"].reward is None


async def test_a_session_without_a_model_call_has_no_reward(alone: Gateway) -> None:
    await alone.admin.create_session("s1")
    ended = await alone.admin.finish("s1", reward=0.0)
    assert (ended["rollout"]["outcome"], ended["rollout"]["reward"]) == ("infra.harness", None)


async def test_a_session_that_wanted_more_turns_ends_by_its_budget_and_has_its_reward(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    agent = await alone.session(max_turns=1)
    engine.say(f"hello{END}")
    first = await agent.ask([user("hi")])
    body = agent.body([user("hi"), echo(first), user("more")])
    assert (await agent.post("/v1/messages", body))[0] == 403
    ended = await alone.admin.finish("s1", reward=0.5)
    assert (ended["rollout"]["outcome"], ended["rollout"]["reward"]) == ("budget.turns", 0.5)


async def test_what_is_deleted_is_cancelled_and_what_is_open_at_the_end_lost_its_gateway(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", keep_rollouts=True
    ) as gateway:
        deleted = await gateway.session("deleted")
        await gateway.session("open")
        engine.say(f"hello{END}")
        await deleted.ask([user("hi")])
        await gateway.admin.delete("deleted")
    kept = rollouts(gateway)
    assert kept["deleted"].outcome.code is OutcomeCode.CANCELLED_USER
    assert kept["open"].outcome.code is OutcomeCode.INFRA_GATEWAY
    assert (kept["deleted"].turns, kept["open"].turns) == (1, 0)


async def test_the_key_of_a_session_opens_nothing_but_its_own_turns(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    agent, other = await alone.session("s1"), await alone.session("s2")
    calls = [
        *(("POST", f"/admin/sessions/{name}/finish") for name in ("s1", "s2")),
        *(("GET", f"/admin/sessions/{name}") for name in ("s1", "s2")),
        *(("DELETE", f"/admin/sessions/{name}") for name in ("s1", "s2")),
        *(("POST", f"/admin/{name}") for name in ("sessions", "pause", "resume")),
        ("GET", "/admin/openapi.json"),
    ]
    for method, path in calls:
        for headers in ({"x-api-key": agent.key}, {"authorization": f"Bearer {agent.key}"}, {}):
            async with alone.http.request(
                method, alone.url + path, json={"reward": 1.0}, headers=headers
            ) as response:
                assert response.status == 401, (method, path)
    for method, path in (
        ("POST", "/v1/messages/../../admin/sessions"),
        ("POST", "//admin/sessions/s1/finish"),
        ("POST", "/v1/sessions/s1/finish"),
    ):
        async with alone.http.request(
            method, alone.url + path, json={}, headers={"x-api-key": agent.key}
        ) as response:
            assert response.status in (401, 404), path
    engine.say(f"hello{END}")
    await agent.ask([user("hi")])
    assert (await other.stats())["turns"] == 0
    assert rollouts(alone) == {}


async def test_sessions_of_a_process_that_died_are_kept_unless_they_are_already(
    alone: Gateway, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.always = Completion(f"hello{END}")
    for name in ("finished", "cut_off"):
        agent = await alone.session(name, task="greet")
        await agent.ask([user("hi")])
    await alone.admin.finish("finished", reward=0.25)
    keep_lost(alone.run_dir, 1)  # another process
    assert set(rollouts(alone)) == {"finished"}
    keep_lost(alone.run_dir, 0)
    kept = rollouts(alone)
    assert set(kept) == {"finished", "cut_off"}
    assert (kept["finished"].outcome.code, kept["finished"].reward) == ("policy.finished", 0.25)
    cut_off = kept["cut_off"]
    assert (cut_off.outcome.code, cut_off.reward, cut_off.turns) == ("infra.gateway", None, 1)
    assert (cut_off.group, cut_off.member, cut_off.task_id) == (0, 1, "greet")
    with RunStore.open(alone.run_dir, read_only=True) as store:
        dump(store, tmp_path / "dump")
    assert validate(tmp_path / "dump" / "trajectories.jsonl") == []
