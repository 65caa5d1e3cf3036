"""A campaign whose gateway is several processes is the same campaign."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.observe.export.jsonl import validate
from runners.observe.export.run_dump import dump
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration


def first_step(mini: Miniature) -> dict[str, list[tuple[list[int], list[int], list[float], int]]]:
    """Return what every final rollout of the first step sampled, and from what."""
    with mini.store() as store:
        return {
            record.rollout_id: [
                (
                    turn.prompt_new.tolist(),
                    turn.output_ids.tolist(),
                    turn.output_logprobs.tolist(),
                    turn.weight_version,
                )
                for turn in store.turns(record.session_id)
            ]
            for record in store.rollouts(split="train", counts=True)
            if record.step == 1
        }


def find_gateways(driver: int) -> list[psutil.Process]:
    """Return the gateway's processes, by the time of their start."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a command of a sandbox that has just ended
            if process.cmdline()[-1:] == ["runners.gateway"]:
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def test_a_campaign_samples_the_same_through_two_gateway_processes_of_which_one_is_killed(
    miniature: Miniature, finished: tuple[Miniature, dict[str, Any]], tmp_path: Path
) -> None:
    single, doubled = finished[0], miniature
    driver = doubled.begin("run.steps=1", "run.eval_tasks=0", "gateway.replicas=2")
    doubled.wait_until(lambda store: len(store.rollouts()) >= 1, driver)
    gateways = find_gateways(driver.pid)
    assert len(gateways) == 2
    gateways[-1].kill()  # its rollouts get a fresh attempt, which samples the same
    document = doubled.finish(driver)
    assert document["tokens"]["in_loss"] == document["tokens"]["sampled"] > 0
    assert not [process for process in gateways if process.is_running()]
    assert first_step(doubled) == first_step(single)
    files = sorted(os.listdir(doubled.run_dir / "arrays"))  # noqa: PTH208
    assert files == ["turns-1.bin", "turns.bin"]
    with doubled.store() as store:
        store.verify_arrays()
        report = dump(store, tmp_path / "dump")
        lost = {record.outcome.code for record in store.rollouts(counts=False)}
        assert lost <= {"infra.gateway"}
        assert report.rollouts == len(store.rollouts(counts=True)) == 8
    assert validate(tmp_path / "dump" / "trajectories.jsonl") == []
