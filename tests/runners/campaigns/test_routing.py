"""Campaigns with routing replay: every row captured and replayed, or a refusal at the start."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.errors import ExitCode
from runners.campaigns.step_training import note_masked
from runners.observe.live.result import summarize
from runners.records.routing import NO_ROW
from runners.records.store.run_store import RunStore
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration


def test_a_campaign_under_an_int8_engine_replays_every_token_of_every_branch(
    miniature: Miniature,
) -> None:
    document = miniature.finish(
        miniature.begin(
            "scenario=mixed", "seed=0", "routing_replay=rollout", "routing_replay.shadow_every=1",
            "engine.weights=int8", "run.steps=1", "run.eval_tasks=0", "reward.turn_penalty=0.1",
        )
    )  # fmt: skip
    assert document["steps"] == 1
    [line] = (miniature.run_dir / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert metrics["r3/captured"] == metrics["r3/replayed"] == 1.0
    assert metrics["train/updates"] == 1.0
    assert 0.0 < metrics["r3/disagree_token"] < 0.5
    assert metrics["r3/k3"] < metrics["r3/k3_native"] / 2
    routing = document["routing"]
    assert routing == {name: metrics[f"r3/{name}"] for name in routing}
    with miniature.store() as store:
        turns = [turn for name in store.sessions() for turn in store.turns(name)]
        routed = [len(store.routed_turns(name)) for name in store.sessions()]
        found = [percent for name in store.sessions() for _, percent in store.agreements(name)]
    assert sum(routed) == len(turns) > 0
    replayed = np.concatenate(found)
    replayed = replayed[replayed != NO_ROW]
    assert 0 < np.mean(replayed < 100) < 0.5
    assert replayed.max() == 100


async def test_an_engine_that_returns_no_routing_ends_the_campaign_before_its_first_rollout(
    miniature: Miniature,
) -> None:
    async with ScriptedEngine() as engine:
        engine.always = Completion("ab<|im_end|>")
        process = miniature.begin(
            "model=tiny", "engine=sglang", f"engine.url={engine.url}", "routing_replay=rollout"
        )
        out, err = await asyncio.to_thread(process.communicate, timeout=600)
        assert process.returncode == ExitCode.PREFLIGHT, err.decode()
        assert b"--enable-return-routed-experts" in out + err
        assert all("probe" in asked["rid"] for asked in engine.seen.requests)
    with miniature.store() as store:
        assert store.sessions() == {}


def test_what_was_masked_is_an_event_with_its_reason(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", {}) as store:
        note_masked(store, "routing_refused", {"train-000001-000-00": "routes token 3 in layer 1"})
        note_masked(store, "unbuilt", {})
        (event,) = store.events()
    assert event.kind == "routing_refused"
    assert event.data == {
        "rollout_id": "train-000001-000-00",
        "reason": "routes token 3 in layer 1",
    }


def test_the_summary_tells_what_replay_came_to_only_where_there_was_any(
    miniature: Miniature,
) -> None:
    figures = {"r3/captured": 1.0, "r3/disagree_token": 0.1, "r3/k3": 1e-6}
    with RunStore.create(miniature.run_dir, {}) as store:
        for step in (1, 2):
            store.begin_step(step, [])
        store.finish_step(1, figures | {"r3/k3_native": 4e-6})
        assert summarize(store, wall_s=1.0)["routing"]["k3_native"] == 4e-6
        store.finish_step(2, figures | {"r3/k3": 3e-6, "r3/k3_native": None})
        routing = summarize(store, wall_s=1.0)["routing"]
    assert routing["k3"] == pytest.approx(2e-6)
    assert routing["k3_native"] == 4e-6, "of the step in which it was measured"
    with RunStore.create(miniature.run_dir.with_name("other"), {}) as store:
        store.begin_step(1, [])
        store.finish_step(1, {"policy/k3": 1e-6})
        assert "routing" not in summarize(store, wall_s=1.0)
