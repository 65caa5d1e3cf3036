"""A job that really rolls out: ``agentrl run`` drives slime's plug, in a process like slime's that
is killed in the middle of a step; what comes back is in the run directory.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from runners.records.store.run_store import RunStore
from tests.cli.conftest import Agentrl
from tests.fakes.cluster import HOSTS, Cluster, make_cluster
from tests.fakes.cluster_tasks import write_job_inputs

pytestmark = pytest.mark.integration

SMALL = (
    *("run.steps=2", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=1"),
    *("run.eval_every=1", "trainer.save_every=1", "rollout.attempts=1"),
)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A running Ray cluster, a checkpoint, and three tasks, of which the last is held out."""
    made = make_cluster(tmp_path)
    (tmp_path / "fake" / "nodes").mkdir()
    for host in HOSTS:
        (tmp_path / "fake" / "nodes" / host).touch()
    write_job_inputs(tmp_path / "shared", 3, repository=tmp_path)
    train = {"FAKE_PYTHON": sys.executable, "FAKE_TRAIN": "tests.fakes.slime_train"}
    for name, value in made.environment(**train).items():
        monkeypatch.setenv(name, value)
    return made


def test_rollouts_metrics_and_status_come_back_and_a_killed_job_repeats_nothing(
    agentrl: Agentrl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = cluster.job
    monkeypatch.setenv("FAKE_DIE", "2")
    died = agentrl("run", *cluster.overrides("ray", *SMALL))
    assert died.code == 1, died.stderr
    assert "step 1/2  reward" in died.stderr
    with RunStore.open(run_dir, read_only=True) as store:
        before = [r for r in store.rollouts(step=2, split="train") if r.reward is not None]
    assert before, "it died when a group of step 2 was done"

    done = agentrl("run", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["steps"], document["exit_code"]) == (2, 0)
    assert sum(document["outcomes"].values()) == document["rollouts"] == 2 * 2 * 4 + 3
    assert document["tokens"]["in_loss"] == document["tokens"]["sampled"] > 0
    with RunStore.open(run_dir, read_only=True) as store:
        attempts = Counter(r.rollout_id for r in store.rollouts(step=2, split="train"))
        assert all(attempts[record.rollout_id] == 1 for record in before), "kept as they were"
        assert [row.step for row in store.evaluations()] == [0, 1, 2]
        trained, measured = (
            {r.task_id for r in store.rollouts(split=split)} for split in ("train", "eval")
        )
        assert (len(trained), len(measured)) == (2, 1)
        assert trained.isdisjoint(measured)

    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    names = ("train/solve_rate", "tokens/trained", "time/rollout_s", "eval/solve_rate")
    assert all(name in line for line in lines for name in names)
    status = json.loads(agentrl("status", str(run_dir), "--json").stdout)
    assert (status["state"], status["steps_done"], status["exit_code"]) == ("done", 2, 0)
    assert status["leaks"] == []
    published = json.loads((run_dir / "status.json").read_text())
    # Of what this machine sees, of an evaluation, and of the store, which is here now.
    read_here = {"leaks": [], "passes": [], "cost": status["cost"]}
    assert {**published, **read_here} == {**status, "resume": published["resume"]}
    dumped = agentrl("dump-trajectories", str(run_dir), "--validate", "--json")
    assert (dumped.code, json.loads(dumped.stdout)["validated"]) == (0, True)
    log = run_dir / "store.sqlite-wal"
    assert not log.exists() or not log.stat().st_size, "any machine can open it now"
    gateway = json.loads((run_dir / "gateway.json").read_text())
    assert set(gateway) == {"url", "urls", "public_url", "node", "since"}
    cluster.no_file_holds_the_secret()

    again = agentrl("run", "--resume", str(run_dir))
    assert again.code == 0
    assert "2 of 2 steps are done already" in again.stderr
