"""A campaign whose trainer is two processes: trained, interrupted, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

import psutil
import pytest

from conf.errors import ExitCode
from runners.system.processes.ledger import Ledger
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration

FEW = [
    *("run.steps=2", "run.tasks_per_step=1", "run.rollouts_per_task=3", "run.eval_tasks=0"),
    *("scenario=linear", "harness.max_turns=2", "sampling.max_new_tokens=16"),
    *("trainer.entropy_bonus=0.1", "trainer.devices=2"),
]


def ranks_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the processes of a run's trainer, once both are there."""
    for _ in range(6000):
        found = [each for each in psutil.Process(process.pid).children() if is_rank(each)]
        if len(found) == 2:
            return found
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.02)
    raise AssertionError("the trainer's processes did not start")


def is_rank(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # of a short-lived one
        return "runners.training.ranks" in process.cmdline()
    return False


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_run_loses_a_rank_then_is_interrupted_and_goes_on_with_another_number_of_processes(
    miniature: Miniature,
) -> None:
    process = miniature.begin(*FEW, "trainer.shard=model")
    ranks = ranks_of(process)
    os.kill(ranks[1].pid, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == ExitCode.SERVICE_GONE, err.decode()
    assert b"trainer-1" in out + err
    assert not any(lives(rank) for rank in ranks)
    process = miniature.resume()
    ranks = ranks_of(process)
    while not (miniature.run_dir / "checkpoints" / "step-000001").is_dir():
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode in (ExitCode.INTERRUPTED, ExitCode.DONE), err.decode()
    assert not any(lives(rank) for rank in ranks)
    with miniature.store() as store:
        assert Ledger(store).entries() == []
    process = miniature.resume("trainer.devices=1", "trainer.shard=none", "run.steps=3")
    out, err = process.communicate()
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["steps"] == 3
    lines = (miniature.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train/updates"] for line in lines] == [1.0, 1.0, 1.0]


@pytest.mark.slow  # a campaign with two ranks; trainer_ranks/test_client.py closes what it would
def test_no_rank_outlives_a_killed_driver(miniature: Miniature) -> None:
    process = miniature.begin(*FEW)
    ranks = ranks_of(process)
    process.kill()
    process.wait()
    psutil.wait_procs(ranks, timeout=60)
    assert not any(lives(rank) for rank in ranks)
