"""Pre-flight of every node of a Ray cluster that runs already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.job_files import SCRIPTS, render_files
from launch.plan import plan_job
from tests.fakes.cluster import HOSTS, Cluster, make_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = make_cluster(tmp_path)
    (tmp_path / "fake" / "nodes").mkdir()
    for host in HOSTS:
        (tmp_path / "fake" / "nodes" / host).touch()
    return made


def pod(cluster: Cluster) -> Path:
    """Create the files that are mounted in a container of the RayJob; return the entry point."""
    manifest = json.loads(
        render_files(plan_job(cluster.config("kubernetes")), command=["agentrl"])["rayjob.json"]
    )
    configuration, _ = manifest["items"]
    mounted = cluster.root / "mounted"
    mounted.mkdir()
    for name, text in configuration["data"].items():
        (mounted / name).write_text(text)
    return mounted / "entry.sh"


@pytest.mark.integration
@pytest.mark.parametrize("launch", ["ray", "kubernetes"])
def test_a_node_that_is_unfit_is_named_before_anything_is_converted(
    cluster: Cluster, launch: str
) -> None:
    start = cluster.write("ray") if launch == "ray" else pod(cluster)
    done = cluster.start(start, FAKE_BROKEN="node2")
    assert done.returncode == 3
    assert "7 GPUs, launch.gpus_per_node=8" in (cluster.job / "state/failed-node2").read_text()
    assert not list((cluster.job / "state").glob("failed-node[13-7]"))
    assert not cluster.calls("python -u train.py")
    assert "convert.py" not in " ".join(cluster.said("calls"))
    fixed = cluster.start(start)
    assert fixed.returncode == 0, fixed.stderr
    assert len(cluster.calls("python -u train.py")) == 1
    assert "bash " + str(cluster.job / "launch" / "export.sh") in fixed.stdout + fixed.stderr
    assert (cluster.job / "launch" / "export.sh").is_file()  # the fake training left no checkpoint
    cluster.no_file_holds_the_secret()


def test_with_launch_ray_the_launcher_names_the_node(cluster: Cluster) -> None:
    done = cluster.start(cluster.write("ray"), FAKE_BROKEN="node2")
    assert "node2: 7 GPUs, launch.gpus_per_node=8" in done.stderr


@pytest.mark.parametrize("launch", ["ray", "kubernetes"])
def test_an_agent_program_that_cannot_reach_the_gateway_stops_the_job_before_training(
    cluster: Cluster, launch: str
) -> None:
    start = cluster.write("ray") if launch == "ray" else pod(cluster)
    done = cluster.start(start, FAKE_CHECK_EXIT="3")
    assert done.returncode == 3
    assert not cluster.calls("python -u train.py")
    (failed,) = (cluster.job / "state").glob("failed-*")
    assert "no turn" in failed.read_text()


@pytest.fixture
def two_nodes() -> Iterator[str]:
    """Yield the address of a real Ray of two nodes."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as RayCluster

    ray: Any = RayCluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    ray.add_node(num_cpus=0)
    yield ray.address
    ray.shutdown()


@pytest.mark.slow
def test_every_node_of_a_real_ray_is_checked_once(two_nodes: str, tmp_path: Path) -> None:
    def check(command: str) -> subprocess.CompletedProcess[str]:
        script, words = SCRIPTS / "check_nodes.py", ["bash", "-c", command]
        return subprocess.run(
            [sys.executable, str(script), str(tmp_path), "2", "--", *words],
            env={**os.environ, "RAY_ADDRESS": two_nodes},
            capture_output=True,
            text=True,
        )

    fit = check(f"echo asked >>{tmp_path}/asked")
    assert fit.returncode == 0, fit.stderr
    assert "2 of 2 nodes pass the pre-flight" in fit.stderr
    assert (tmp_path / "asked").read_text().splitlines() == ["asked", "asked"]
    unfit = check("echo '7 GPUs'; exit 3")
    assert unfit.returncode == 3
    assert unfit.stderr.count(": 7 GPUs") == 2
    (failed, *_) = tmp_path.glob("failed-*")
    assert failed.read_text() == "7 GPUs\n"
