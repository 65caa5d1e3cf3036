"""Whole campaigns in miniature: they train on exact tokens, survive failures, and resume."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from runners.campaigns.what_if.what_if import ask_what_if
from runners.observe.export.jsonl import validate
from runners.observe.export.run_dump import dump
from runners.observe.live.status import read_store_status
from runners.records.graph import build_segments
from runners.records.store.run_store import RunStore
from tests.fakes.metrics_page import undocumented
from tests.runners.campaigns.account import assert_nothing_twice
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration

Finished = tuple[Miniature, dict[str, Any]]


def rollouts_counting(store: RunStore, split: str) -> int:
    """Return the number of final rollouts of a split so far."""
    return len(store.rollouts(split=split, counts=True))


def service_pid(mini: Miniature, module: str) -> int:
    """Process id of a service of the running campaign."""
    children = psutil.Process(mini.processes[-1].pid).children()
    return next(child.pid for child in children if module in child.cmdline())


@pytest.mark.decides
def test_a_campaign_runs_from_nothing_to_a_trained_policy(finished: Finished) -> None:
    miniature, document = finished
    assert set(document) >= {"run_dir", "steps", "eval", "wall_s", "rollouts", "outcomes", "tokens"}
    assert document["steps"] == 2
    assert document["rollouts"] == sum(document["outcomes"].values()) == 24
    tokens = document["tokens"]
    assert tokens["in_loss"] == tokens["sampled"] >= tokens["trained"] >= 0 < tokens["sampled"]
    with miniature.store() as store:
        found = read_store_status(store).to_dict()
        assert_nothing_twice(store)
    assert (found["tokens"], found["groups"]) == (tokens, document["groups"])
    assert set(document["eval"]) == {"first", "last", "interval"}
    assert list(miniature.run_dir.rglob("events.out.tfevents.*"))
    assert not list((miniature.run_dir / "sandboxes").glob("*"))
    wanted = {
        "step", "train/reward_mean", "rollout/turns_mean", "tokens/sampled", "tokens/trained",
        "loss/policy", "time/rollout_s", "time/train_s", "policy/k3",
    }  # fmt: skip
    lines = [
        json.loads(line) for line in (miniature.run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(set(line) >= wanted for line in lines)
    assert not undocumented({name for line in lines for name in line})
    assert document["groups"]["total"] == sum(line["rollout/groups"] for line in lines)
    mismatch = [line["policy/k3"] for line in lines if line["policy/k3"] is not None]
    assert mismatch, "both steps are without any update"
    assert max(map(abs, mismatch)) < 1e-6
    assert all("eval/solve_rate" in line for line in lines)


def test_the_rules_of_a_campaign_reproduce_its_advantages_from_the_store(
    finished: Finished,
) -> None:
    found = ask_what_if(finished[0].run_dir, [])
    assert (found.not_reproduced, [each.step for each in found.steps]) == ([], [1, 2])


def test_every_stored_trajectory_is_token_exact_and_dumps_validly(
    finished: Finished, tmp_path: Path
) -> None:
    miniature, _ = finished
    with miniature.store() as store:
        records = store.rollouts(counts=True)
        for record in records:
            turns = store.turns(record.session_id)
            chains = build_segments(turns)
            assert sum(int(chain.loss_mask.sum()) for chain in chains) == record.sampled_tokens
            assert np.array_equal(
                np.concatenate([chain.tokens[chain.loss_mask] for chain in chains]),
                np.concatenate([turn.output_ids for turn in turns]),
            )
            assert {turn.weight_version for turn in turns} == {_version(record.step, record.split)}
        report = dump(store, tmp_path / "dump")
    assert validate(tmp_path / "dump" / "trajectories.jsonl") == []
    assert report.rollouts == len(records)


def _version(step: int, split: str) -> int:
    """Weight version that a rollout of this step is sampled with."""
    return step if split == "eval" else step - 1


@pytest.mark.decides
def test_a_run_is_interrupted_then_loses_its_engine_and_is_resumed_from_both(
    miniature: Miniature,
) -> None:
    driver = miniature.begin()
    miniature.wait_until(lambda store: rollouts_counting(store, "eval") >= 1, driver)
    driver.send_signal(signal.SIGINT)
    document = miniature.finish(driver, code=130)
    assert document["steps"] < 2
    assert not list((miniature.run_dir / "sandboxes").glob("*"))
    driver = miniature.resume()
    miniature.wait_until(lambda store: rollouts_counting(store, "train") >= 1, driver)
    os.kill(service_pid(miniature, "runners.engines.embedded"), signal.SIGKILL)
    _, err = driver.communicate()
    assert driver.returncode == 4, err.decode()
    assert "engine ended unexpectedly" in err.decode()
    miniature.finish(miniature.resume())
    with miniature.store() as store:
        assert_nothing_twice(store)


def test_a_port_in_use_is_found_before_anything_starts(miniature: Miniature) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        driver = miniature.begin(f"gateway.port={port}")
        _, err = driver.communicate()
    assert driver.returncode == 3
    assert f"{port}" in err.decode()
    assert "gateway.port" in err.decode()
    assert not (miniature.run_dir / "store.sqlite").exists()
