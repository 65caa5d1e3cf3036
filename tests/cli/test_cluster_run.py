"""``agentrl run launch=…``: start a job, follow it, leave it and follow it again, with fake
launchers.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Agentrl, Ended
from tests.fakes.cluster import BIN, HOSTS, PUBLISHED, Cluster, make_cluster, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = make_cluster(tmp_path)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    yield made
    (made.root / "queued").unlink(missing_ok=True)  # what still waits for it ends


def running_ray(cluster: Cluster) -> Cluster:
    (cluster.root / "fake" / "nodes").mkdir()
    for host in HOSTS:
        (cluster.root / "fake" / "nodes" / host).touch()
    return cluster


def said(ended: Ended) -> str:
    return " ".join(ended.stderr.split())


def test_a_failed_job_gives_its_reason_and_a_resumed_one_continues(
    agentrl: Agentrl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_ray(cluster)
    monkeypatch.setenv("FAKE_TRAIN_EXIT", "9")
    done = agentrl("run", *cluster.overrides("ray"))
    assert done.code == 1
    assert "has failed; start it again to continue from the last checkpoint" in said(done)
    assert "its last output: step 0 done" in said(done)
    assert f"continue with: agentrl run --resume {cluster.job}" in said(done)
    monkeypatch.setenv("FAKE_TRAIN_EXIT", "0")
    again = agentrl("run", "--resume", str(cluster.job), "run.steps=170", "--json")
    assert again.code == 0, again.stderr
    document = json.loads(again.stdout)
    assert (document["run_dir"], document["exit_code"]) == (str(cluster.job), 0)
    assert (document["launch"], document["message"]) == ("ray", "")
    first, second = cluster.calls("python -u train.py")
    assert "--num-rollout 100" in first
    assert "--num-rollout 170" in second
    assert json.loads((cluster.job / "config.json").read_text())["run"]["steps"] == 170


@pytest.mark.parametrize(
    ("variable", "join_s", "code", "message"),
    [
        ("FAKE_BROKEN", 600, 3, "node2: 7 GPUs, launch.gpus_per_node=8"),
        ("FAKE_MISSING", 15, 4, "7 of 8 nodes joined within 15 s (launch.join_s)"),
    ],
)
def test_a_problem_before_training_has_its_own_exit_code(
    agentrl: Agentrl,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    join_s: int,
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv(variable, "node2")
    done = agentrl("run", *cluster.overrides("ssh"), f"launch.join_s={join_s}")
    assert done.code == code
    assert message in said(done)
    assert (cluster.job / "state" / "exit_code").read_text() == f"{code}\n"


def test_a_job_survives_its_terminal_and_is_followed_again(
    agentrl: Agentrl, cluster: Cluster
) -> None:
    hold = cluster.root / "hold"
    hold.touch()
    first = cluster.agentrl("run", *cluster.overrides("ssh"), FAKE_HOLD=str(hold))
    wait_for(cluster.job / "state" / "phase", containing="training")
    os.killpg(first.pid, signal.SIGHUP)  # the terminal's processes
    first.communicate()
    assert first.returncode == -signal.SIGHUP
    settings = (cluster.job / "launch" / "settings.sh").read_text()
    for mode in ([], ["--dry-run"]):
        refused = agentrl("run", "--resume", str(cluster.job), "run.steps=170", *mode)
        assert refused.code == 2
        assert "runs with the configuration that it was started with" in said(refused)
    assert (cluster.job / "launch" / "settings.sh").read_text() == settings
    second = cluster.agentrl("run", "--resume", str(cluster.job))
    assert second.stderr is not None
    shown = [second.stderr.readline() for _ in range(3)]
    assert shown[2].startswith("following process "), shown
    hold.unlink()
    second.communicate()
    assert second.returncode == 0
    assert sorted(cluster.said("ended")) == sorted(HOSTS)
    assert len(cluster.calls("python -u train.py")) == 1
    cluster.no_file_holds_the_secret()


def test_ctrl_c_leaves_the_job_in_its_queue_and_prints_how_to_stop_it(
    agentrl: Agentrl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = cluster.root / "queued"
    queued.touch()
    overrides = cluster.overrides("slurm")
    first = cluster.agentrl("run", *overrides, FAKE_QUEUED=str(queued))
    assert first.stderr is not None
    while first.stderr.readline() != "queued: pending (Resources)\n":
        assert first.poll() is None
    status = json.loads(agentrl("status", str(cluster.job), "--json").stdout)
    assert (status["state"], status["message"]) == ("running", "queued (Slurm job 4242)")
    with monkeypatch.context() as elsewhere:  # a machine without Slurm, that mounts the directory
        elsewhere.setenv("PATH", "/usr/bin:/bin")
        seen = agentrl("status", str(cluster.job))
    assert seen.code == 0, seen.stderr
    assert "last seen: queued; squeue" in " ".join(seen.stdout.split())
    first.send_signal(signal.SIGINT)
    _, stderr = first.communicate()
    assert first.returncode == 130
    assert "the job goes on without this terminal" in stderr
    assert f"follow it: agentrl run --resume {cluster.job}" in stderr
    assert "stop it:   scancel 4242" in stderr
    again = cluster.agentrl("run", *overrides, FAKE_QUEUED=str(queued))
    assert again.stderr is not None
    while again.stderr.readline() != "following Slurm job 4242, which is running\n":
        assert again.poll() is None
    queued.unlink()
    _, stderr = again.communicate()
    assert again.returncode == 0, stderr
    assert len(cluster.calls("sbatch")) == 1
    cluster.no_file_holds_the_secret()


def test_a_job_that_slurm_refuses_ends_with_slurm_s_message(
    agentrl: Agentrl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("state", "logs"):
        (cluster.job / name).mkdir(parents=True)
    (cluster.job / "state" / "slurm_id").write_text("4241\n")
    (cluster.job / "logs" / "slurm-4241.log").write_text("22:00:00 agentrl: error: long ago\n")
    (cluster.root / "fake" / "cancelled").touch()
    monkeypatch.setenv("FAKE_REFUSED", "yes")
    done = agentrl("run", *cluster.overrides("slurm"))
    assert done.code == 4
    assert (
        "sbatch did not accept the job; its last output: sbatch: error: Batch job submission "
        "failed: Invalid partition name specified"
    ) in said(done)
    assert f"(log: {cluster.job / 'logs' / 'launch.log'})" in said(done)


def test_a_rayjob_is_submitted_followed_and_replaced_after_its_end(
    agentrl: Agentrl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = cluster.overrides("kubernetes")
    overrides[2] = "launch.shared_dir=/mounted/in/the/pods"
    kept = [line for line in overrides if not line.startswith(("model.path", "task.path"))]
    asked = [*kept, "model.path=/mounted/weights", "task.path=/mounted/tasks.jsonl"]
    monkeypatch.setenv("FAKE_JOB_STATUS", "Failed FAILED")
    failed = agentrl("run", *asked)
    assert failed.code == 1
    assert "its files are in /mounted/in/the/pods/agentrl of the claim" in said(failed)
    monkeypatch.setenv("FAKE_JOB_STATUS", "Complete SUCCEEDED")
    done = agentrl("run", "--resume", "runs/agentrl")
    assert done.code == 0, done.stderr
    assert (done.stdout, len(cluster.calls("kubectl --namespace default delete"))) == (
        f"{cluster.root}/runs/agentrl\n",
        1,
    )
    (cluster.root / "fake" / "rayjob").write_text("running\nrunning\nComplete SUCCEEDED\n")
    again = agentrl("run", *asked)
    assert again.code == 0
    assert "following RayJob agentrl, which is running" in said(again)
    assert len(cluster.calls("kubectl --namespace default apply")) == 2


def test_a_missing_shared_directory_is_refused_before_anything_starts(
    agentrl: Agentrl, cluster: Cluster
) -> None:
    overrides = [line.replace("/shared", "/not-here") for line in cluster.overrides("slurm")]
    for mode in ([], ["--dry-run"]):
        done = agentrl("run", *overrides, *mode)
        assert (done.code, done.stdout) == (3, "")
        assert "not-here is not a directory here: start the job where it is mounted" in said(done)
    assert cluster.said("calls") == []
    assert not list(cluster.root.glob("**/slurm.sh"))


def test_all_problems_of_a_start_are_reported_at_once(
    agentrl: Agentrl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("E2B_API_KEY")
    (cluster.root / "hosts").write_text("head\n")
    (cluster.root / "shared" / "tasks.jsonl").unlink()
    (cluster.root / "shared" / "weights" / "config.json").unlink()
    monkeypatch.setenv("PATH", str(cluster.root))
    done = agentrl("run", *cluster.overrides("ssh"))
    assert done.code == 3
    for message in (
        "launch=ssh starts the job with ssh, which is not on this machine's PATH",
        "the job needs E2B_API_KEY in the environment",
        "names 1 hosts, and launch.nodes=8",
        "tasks.jsonl does not exist",
        "weights has no config.json",
    ):
        assert message in said(done)
    assert not cluster.job.exists()


def test_a_checkpoint_of_another_model_is_named_before_anything_is_submitted(
    agentrl: Agentrl, cluster: Cluster
) -> None:
    file = cluster.root / "shared" / "weights" / "config.json"
    for changed, message in (
        ({"num_hidden_layers": 94}, "says 94, but model.architecture.layers=48"),
        ({"model_type": "mamba"}, "model_type=mamba is none of the families that slime trains"),
    ):
        file.write_text(json.dumps(PUBLISHED | changed))
        done = agentrl("run", "--dry-run", *cluster.overrides("ssh"))
        assert done.code == 0
        assert message in said(done)


def test_another_run_s_directory_is_refused_with_both_fixes(
    agentrl: Agentrl, cluster: Cluster
) -> None:
    overrides = cluster.overrides("slurm")
    cluster.job.mkdir()
    shown = agentrl("show", *overrides, "--json").stdout
    (cluster.job / "config.json").write_text(shown)
    done = agentrl("run", *overrides, "run.steps=70", "scenario=mixed")
    assert done.code == 2
    assert "run.steps=100, not 70" in said(done)
    assert f"agentrl run --resume {cluster.job}" in said(done)
    assert "choose another launch.name" in said(done)
    refused = agentrl("run", "--resume", str(cluster.job), "scenario=mixed")
    assert refused.code == 2
    assert "cannot become" in said(refused)
    assert cluster.calls("sbatch") == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["run.dir=here"], "leave run.dir out"),
        (["seed=0,1"], "start each combination with a launch.name of its own"),
        (["launch.join=2"], "did you mean launch.join_s"),
        (["launch.extra_flags=[--colocatee]"], "did you mean --colocate?"),
    ],
)
def test_a_wrong_request_is_refused_with_its_fix(
    agentrl: Agentrl, cluster: Cluster, more: list[str], message: str
) -> None:
    done = agentrl("run", *cluster.overrides("slurm"), *more)
    assert done.code == 2
    assert message in said(done)
    assert not cluster.job.exists()


def test_a_dry_run_writes_the_job_and_shows_its_commands(
    agentrl: Agentrl, cluster: Cluster
) -> None:
    overrides = cluster.overrides("slurm")
    done = agentrl("run", *overrides, "--dry-run")
    start = cluster.job / "launch" / "slurm.sh"
    assert (done.code, done.stdout.strip()) == (0, str(start))
    written_by = (cluster.job / "launch" / "settings.sh").read_text().splitlines()[2]
    assert shlex.split(written_by.removeprefix("# Written by:")) == ["agentrl", "run", *overrides]
    assert "GPU memory of the fullest rank" in done.stderr
    assert "at most 2.6 M tokens" in said(done)
    assert f"bash {start}" in said(done)
    assert "sbatch --parsable" in said(done)
    assert cluster.said("calls") == []
    document = json.loads(agentrl("run", *overrides, "--dry-run", "--json").stdout)
    assert document["commands"][0] == f"bash {start}"
    assert document["commands"][-1].startswith(f"{BIN / 'node-python'} -u train.py --actor-num")
    assert document["topology"]["train_gpus"] == 64
    written = subprocess.run(["bash", "-n", start], check=False)
    assert written.returncode == 0
