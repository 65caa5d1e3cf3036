"""The scripts run: against stand-ins for Ray, ssh, Slurm and the nodes, that record what they are
asked.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.fakes.cluster import (
    BIN,
    HOSTS,
    SECRET,
    Cluster,
    make_cluster,
    wait_for,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return make_cluster(tmp_path)


def test_eight_nodes_join_by_ssh_and_are_stopped_at_the_end(cluster: Cluster) -> None:
    done = cluster.start(cluster.write("ssh"), FAKE_LATE="node3")
    assert done.returncode == 0, done.stderr
    assert "8 of 8 nodes have joined" in done.stderr
    started = [line.split() for line in cluster.said("started")]
    assert sorted(line[0] for line in started) == sorted(HOSTS)
    facts = {"secret=yes", "nvls=1", f"run_dir={cluster.job}"}
    assert all(set(line[1:]) == facts for line in started)
    assert len(cluster.calls("ray list nodes")) >= 3  # the late node was waited for
    assert sorted(cluster.said("ended")) == sorted(HOSTS)
    assert not list((cluster.job / "state").glob("node-*.pid"))
    (trained,) = cluster.calls("python -u train.py")
    assert "--load" in trained
    assert (cluster.job / "state" / "exit_code").read_text() == "0\n"
    assert "step 0 done" in (cluster.job / "logs" / "job.log").read_text()
    assert (cluster.job / "config.json").is_file()
    cluster.no_file_holds_the_secret()
    assert SECRET not in done.stdout + done.stderr


def test_a_node_that_never_joins_ends_the_launch_with_a_clear_error(cluster: Cluster) -> None:
    done = cluster.start(cluster.write("ssh", join_s=15), FAKE_MISSING="node5")
    assert done.returncode == 4
    assert "7 of 8 nodes joined within 15 s (launch.join_s)" in done.stderr
    assert not cluster.calls("ray job submit")
    assert sorted(cluster.said("ended")) == sorted(HOSTS)


def test_a_node_that_fails_its_pre_flight_is_named_with_its_fault(cluster: Cluster) -> None:
    done = cluster.start(cluster.write("ssh"), FAKE_BROKEN="node2")
    assert done.returncode == 3
    assert "node2: 7 GPUs, launch.gpus_per_node=8" in done.stderr
    assert "node2" not in [line.split()[0] for line in cluster.said("started")]


def test_a_port_in_use_is_a_fault_of_the_head(cluster: Cluster) -> None:
    start = cluster.write("ssh")
    port = next(
        line.partition("=")[2]
        for line in (cluster.root / "out" / "settings.sh").read_text().splitlines()
        if line.startswith("RAY_PORT=")
    )
    with socket.create_server(("127.0.0.1", int(port))):
        done = cluster.start(start)
    assert done.returncode == 3
    assert f"head: port {port} is in use" in done.stderr


def test_training_that_fails_fails_the_launch_and_the_next_start_resumes(cluster: Cluster) -> None:
    start = cluster.write("ssh")
    assert cluster.start(start, FAKE_TRAIN_EXIT="9").returncode == 1
    assert (cluster.job / "state" / "exit_code").read_text() == "1\n"
    assert len(cluster.calls("ray job submit")) == 1
    done = cluster.start(start)
    assert done.returncode == 0, done.stderr
    assert len(cluster.calls("ray job submit")) == 2
    assert len(cluster.calls("python -u " + str(cluster.job / "launch" / "convert.py"))) == 1
    first_training, second_training = cluster.calls("python -u train.py")
    assert first_training == second_training


def test_a_secret_that_is_missing_stops_the_launch_before_anything_starts(
    cluster: Cluster,
) -> None:
    done = cluster.start(cluster.write("ssh"), E2B_API_KEY="")
    assert done.returncode == 2
    assert "not in the environment: E2B_API_KEY" in done.stderr
    assert cluster.said("calls") == []


def test_a_hosts_file_with_another_number_of_hosts_is_refused(cluster: Cluster) -> None:
    (cluster.root / "hosts").write_text("head\nnode1\n")
    done = cluster.start(cluster.write("ssh"))
    assert done.returncode == 2
    assert "names 2 hosts, launch.nodes=8" in done.stderr
    assert cluster.said("calls") == []


def test_the_slurm_job_starts_and_stops_every_node(cluster: Cluster) -> None:
    start = cluster.write("slurm")
    done = cluster.start(start)
    assert done.returncode == 0, done.stderr
    (asked,) = cluster.calls("sbatch")
    assert "--nodes=8" in asked
    log = cluster.job / "logs" / "slurm-4242.log"
    wait_for(cluster.root / "fake" / "slurm_rc")
    assert (cluster.root / "fake" / "slurm_rc").read_text() == "0\n", log.read_text()
    assert sorted(line.split()[0] for line in cluster.said("started")) == sorted(HOSTS)
    assert sorted(cluster.said("ended")) == sorted(HOSTS)
    assert (cluster.job / "state" / "exit_code").read_text() == "0\n"
    cluster.no_file_holds_the_secret()


def test_a_slurm_job_that_runs_is_not_submitted_twice(cluster: Cluster) -> None:
    start = cluster.write("slurm")
    (cluster.job / "state").mkdir(parents=True)
    (cluster.job / "state" / "slurm_id").write_text("4242\n")
    done = cluster.start(start)
    assert done.returncode == 0
    assert "4242 runs or waits already" in done.stderr
    assert not cluster.calls("sbatch")


@pytest.mark.parametrize("forgotten", ["", "yes"])
def test_a_slurm_job_that_has_ended_is_submitted_anew(cluster: Cluster, forgotten: str) -> None:
    start = cluster.write("slurm")
    (cluster.job / "state").mkdir(parents=True)
    (cluster.job / "state" / "slurm_id").write_text("4241\n")
    (cluster.root / "fake" / "slurm_rc").write_text("1\n")
    done = cluster.start(start, FAKE_FORGOTTEN=forgotten)  # after Slurm's MinJobAge
    assert done.returncode == 0, done.stderr
    assert "Slurm job 4242 submitted" in done.stderr
    assert len(cluster.calls("sbatch")) == 1


def test_hosts_are_one_a_line_as_slurm_prints_them() -> None:
    recorded = BIN.parent / "recorded" / "slurm" / "hostnames.txt"
    hosts = recorded.read_text().split()
    command = [str(BIN / "scontrol"), "show", "hostnames", "gpu-[01-03,07],login1"]
    printed = subprocess.run(
        command, env={**os.environ, "FAKE_HOSTS": " ".join(hosts)}, capture_output=True, check=True
    )
    assert printed.stdout == recorded.read_bytes()


def test_a_queue_that_does_not_answer_submits_nothing(cluster: Cluster) -> None:
    start = cluster.write("slurm")
    (cluster.job / "state").mkdir(parents=True)
    (cluster.job / "state" / "slurm_id").write_text("4242\n")
    (cluster.root / "fake" / "unreachable").touch()
    done = cluster.start(start)
    assert done.returncode == 4
    assert "Unable to contact slurm controller" in done.stderr
    assert not cluster.calls("sbatch")


def training(cluster: Cluster) -> tuple[Path, subprocess.Popen[bytes], Path]:
    """Start a launch by ssh that trains until a file is gone: script, process, file."""
    hold = cluster.root / "hold"
    hold.touch()
    start = cluster.write("ssh")
    launch = subprocess.Popen(
        ["bash", str(start)], env=cluster.environment(FAKE_HOLD=str(hold)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(cluster.job / "state" / "phase", containing="training")
    return start, launch, hold


def test_a_launch_that_is_started_twice_follows_the_first_one(cluster: Cluster) -> None:
    start, first, hold = training(cluster)
    second = subprocess.Popen(
        ["bash", str(start)], env=cluster.environment(), stderr=subprocess.PIPE, text=True
    )
    assert second.stderr is not None
    assert "runs this job already: following it" in second.stderr.readline()
    hold.unlink()
    assert (first.wait(), second.wait()) == (0, 0)
    second.stderr.close()
    assert len(cluster.calls("ray job submit")) == 1
    assert len(cluster.said("ended")) == len(HOSTS)


def test_the_job_of_a_killed_launch_is_followed(cluster: Cluster) -> None:
    start, first, hold = training(cluster)
    first.kill()
    first.wait()
    second = subprocess.Popen(
        ["bash", str(start)], env=cluster.environment(), stderr=subprocess.PIPE, text=True
    )
    assert second.stderr is not None
    assert "was lost while its job runs: following the job" in second.stderr.readline()
    hold.unlink()
    assert second.wait() == 0
    second.stderr.close()
    assert len(cluster.calls("ray job submit")) == 1
    assert not list((cluster.job / "state").glob("node-*.pid"))
    assert set(cluster.said("ended")) == set(HOSTS)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("apiserver_gone", "The connection to the server 127.0.0.1:6443 was refused"),
        ("no_kuberay", 'the server doesn\'t have a resource type "rayjob"'),
    ],
)
def test_a_cluster_that_cannot_tell_of_rayjobs_gets_none(
    cluster: Cluster, missing: str, reason: str
) -> None:
    (cluster.root / "fake" / missing).touch()
    done = cluster.start(cluster.write("kubernetes"))
    assert done.returncode == 4
    assert "kubectl cannot ask for RayJob agentrl" in done.stderr
    assert reason in done.stderr
    assert not cluster.calls("kubectl --namespace default apply")


def test_a_rayjob_that_is_refused_ends_with_the_reason(cluster: Cluster) -> None:
    done = cluster.start(cluster.write("kubernetes"), FAKE_REFUSED="yes")
    assert done.returncode == 4
    assert "spec.entrypoint: Required value" in done.stderr
    assert "kubectl did not accept the RayJob" in done.stderr


@pytest.mark.parametrize(
    ("status", "code"),
    [("Complete SUCCEEDED", 0), ("Failed FAILED", 1), ("Failed ", 4), ("Complete STOPPED", 1)],
)
def test_the_script_ends_with_the_exit_code_of_its_rayjob(
    cluster: Cluster, status: str, code: int
) -> None:
    done = cluster.start(cluster.write("kubernetes"), FAKE_JOB_STATUS=status)
    assert done.returncode == code, done.stderr
    assert cluster.calls("kubectl --namespace default logs")


def test_a_running_ray_cluster_is_neither_started_nor_stopped(cluster: Cluster) -> None:
    (cluster.root / "fake" / "nodes").mkdir()
    for host in HOSTS:
        (cluster.root / "fake" / "nodes" / host).touch()
    done = cluster.start(cluster.write("ray"))
    assert done.returncode == 0, done.stderr
    assert not cluster.calls("ray start")
    assert not cluster.calls("ray stop")
    (cluster.root / "fake" / "nodes" / "stranger").touch()
    done = cluster.start(cluster.write("ray"))
    assert done.returncode == 4
    assert "9 nodes joined, launch.nodes=8" in done.stderr


def test_a_job_whose_secret_is_missing_on_the_cluster_names_it(cluster: Cluster) -> None:
    (cluster.root / "fake" / "nodes").mkdir()
    for host in HOSTS:
        (cluster.root / "fake" / "nodes" / host).touch()
    done = cluster.start(cluster.write("ray"), FAKE_CLUSTER_SECRET="")
    assert done.returncode == 1
    assert "not in the environment: E2B_API_KEY" in (cluster.job / "logs" / "job.log").read_text()


def test_unreadable_tasks_end_the_job_with_exit_code_5(cluster: Cluster) -> None:
    (cluster.root / "fake" / "nodes").mkdir()
    for host in HOSTS:
        (cluster.root / "fake" / "nodes" / host).touch()
    done = cluster.start(cluster.write("ray"), FAKE_BEGIN_EXIT="5")
    assert done.returncode == 5
    assert (cluster.job / "state" / "exit_code").read_text() == "5\n"
    assert not cluster.calls("python -u train.py")
    assert cluster.start(cluster.job / "launch" / "ray.sh").returncode == 0


def test_stopping_the_launch_stops_only_its_own_nodes(cluster: Cluster) -> None:
    script = cluster.write("ssh")
    stranger = subprocess.Popen(["/bin/sleep", "infinity"])
    try:
        launch = subprocess.Popen(
            ["bash", str(script)],
            env=cluster.environment(FAKE_MISSING="node7"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(cluster.root / "fake" / "started", lines=8)
        launch.send_signal(signal.SIGTERM)
        assert launch.wait() == 143
        assert sorted(cluster.said("ended")) == sorted(HOSTS)
        # A process that has got the number of one that is no more.
        (cluster.job / "state" / "node-node6.pid").write_text(f"{stranger.pid} 1\n")
        stop = cluster.job / "launch" / "stop_node.sh"
        assert subprocess.run(["bash", stop, "node6"], env=cluster.environment()).returncode == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
