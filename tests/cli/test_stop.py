"""``agentrl stop``: runs on this machine, and jobs of every launcher with fake programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import ExitCode
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.cli.conftest import REPOSITORY, Agentrl, Ended
from tests.fakes.cluster import HOSTS, Cluster, make_cluster, wait_for
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

LONG = [
    *("run.steps=1000", "run.tasks_per_step=1", "run.rollouts_per_task=2", "run.eval_tasks=0"),
    *("task.train_tasks=2", "task.held_out_tasks=1", "rollout.concurrency=2"),
    *("harness.max_turns=2", "sampling.max_new_tokens=24", "run.dir=a-run"),
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """Start a run of many steps; yield its directory once it has a session."""
    write_tiny_tokenizer(tmp_path / "policy")
    write_tiny_model(tmp_path / "policy", vocab_size=tiny_tokenizer().get_vocab_size())
    policy = [f"model.{key}={tmp_path / 'policy'}" for key in ("path", "tokenizer")]
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "run", *LONG, *policy],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(tmp_path / "c")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for_a_session(tmp_path / "a-run", process)
        yield tmp_path / "a-run"
    finally:
        process.kill()
        process.communicate()


def _wait_for_a_session(run_dir: Path, process: subprocess.Popen[str]) -> None:
    while True:
        assert process.poll() is None, process.communicate()
        try:
            with RunStore.open(run_dir, read_only=True) as store:
                if store.sessions():
                    return
        except StoreError:
            pass  # not made yet
        time.sleep(0.05)


@pytest.mark.parametrize("options", [[], ["--now"]])
def test_a_run_on_this_machine_ends_in_order(
    agentrl: Agentrl, run_dir: Path, options: list[str]
) -> None:
    done = agentrl("stop", str(run_dir), *options, "--json")
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ended"]
    assert ("left at once" if options else "finished its rollouts in flight") in found["did"]
    with RunStore.open(run_dir, read_only=True) as store:
        state = store.state()
    assert state.exit_code in (ExitCode.TERMINATED, ExitCode.INTERRUPTED)
    again = agentrl("stop", str(run_dir))
    assert again.code == 0
    assert "is not running (interrupted)" in again.stdout


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = make_cluster(tmp_path)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    yield made
    for name in ("queued", "hold"):
        (made.root / name).unlink(missing_ok=True)  # what still waits for it ends


def said(ended: Ended) -> str:
    return " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("launch", "asked"),
    [("slurm", "scancel --batch --signal=TERM 4242"), ("ssh", "kill -TERM ")],
)
def test_a_job_that_trains_ends_its_nodes_and_writes_its_exit_code(
    agentrl: Agentrl, cluster: Cluster, launch: str, asked: str
) -> None:
    hold = cluster.root / "hold"
    hold.touch()
    job = cluster.agentrl("run", *cluster.overrides(launch), FAKE_HOLD=str(hold))
    wait_for(cluster.job / "state" / "phase", containing="training")
    done = agentrl("stop", str(cluster.job))
    assert done.code == 0, done.stderr
    assert asked in said(done)
    assert f"continue with: agentrl run --resume {cluster.job}" in said(done)
    job.communicate()
    assert job.returncode == ExitCode.TERMINATED
    assert (cluster.job / "state" / "exit_code").read_text() == "143\n"
    assert sorted(cluster.said("ended")) == sorted(HOSTS)
    assert agentrl("stop", str(cluster.job)).stdout.endswith("is not running\n")


def test_a_job_in_slurm_s_queue_is_cancelled(
    agentrl: Agentrl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = cluster.root / "queued"
    queued.touch()
    monkeypatch.setenv("FAKE_QUEUED", str(queued))
    job = cluster.agentrl("run", *cluster.overrides("slurm"), FAKE_QUEUED=str(queued))
    wait_for(cluster.job / "state" / "slurm_id")
    done = agentrl("stop", str(cluster.job))
    assert done.code == 0, done.stderr
    assert "stopping Slurm job 4242: scancel 4242" in said(done)
    job.terminate()
    job.communicate()
    assert not cluster.calls("srun")


def test_a_rayjob_is_deleted(agentrl: Agentrl, cluster: Cluster) -> None:
    (cluster.root / "fake" / "rayjob").write_text("running\nrunning\nrunning\n")
    assert agentrl("run", *cluster.overrides("kubernetes"), "--dry-run").code == 0
    shutil.copy(cluster.job / "launch" / "config.json", cluster.job / "config.json")
    done = agentrl("stop", str(cluster.job))
    assert done.code == 0, done.stderr
    assert "has ended" in done.stdout
    assert cluster.calls("kubectl --namespace default delete rayjob agentrl")
