"""A job of two nodes on the real Ray, with every launcher: from the start script to the call of
slime's ``train.py``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conf.compose import to_json
from launch import flags
from tests.fakes.two_nodes import GPUS, SECRET, TwoNodes, have_namespaces, make_two_nodes

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.integration

SLURM = 'bash "$1" && until [[ -s $2 ]]; do sleep 0.2; done && exit "$(<"$2")"'
"""``sbatch`` only submits: wait for the end of the job."""


@pytest.fixture
def nodes(tmp_path: Path) -> TwoNodes:
    pytest.importorskip("ray.dashboard.modules.job.cli", reason="needs the extra ray[default]")
    if not have_namespaces():
        pytest.skip("this machine does not let a user make network namespaces (unshare, ip)")
    return make_two_nodes(tmp_path)


def start(nodes: TwoNodes, launch: str) -> subprocess.CompletedProcess[str]:
    script = str(nodes.write(launch))
    if launch == "slurm":
        return nodes.run("bash", "-c", SLURM, "-", script, str(nodes.root / "fake" / "slurm_rc"))
    return nodes.run("bash", script, ray=launch == "ray")


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param("ssh", marks=pytest.mark.slow),  # test_scripts.py runs the scripts of all four
        "slurm",
        "ray",
        pytest.param("kubernetes", marks=pytest.mark.slow),
    ],
)
def test_two_nodes_join_and_train_is_called_with_the_arguments_of_the_plan(
    nodes: TwoNodes, launch: str
) -> None:
    done = start(nodes, launch)
    everything = done.stdout + done.stderr + nodes.logs()
    assert done.returncode == 0, everything
    assert "2 of 2 nodes have joined" in everything
    call, plan = nodes.train_call(), nodes.plan(launch)
    assert call["arguments"] == flags.to_words(plan.arguments)
    assert (call["gpus"], call["nodes"]) == (2 * GPUS, 2)
    there = call["environment"]
    assert {name: there.get(name) for name in plan.environment} == plan.environment
    assert there["E2B_API_KEY"] == SECRET
    converted = nodes.root / "shared" / "weights_torch_dist"
    ranks = GPUS * plan.job.model.layout.convert_nodes
    assert {file.read_text() for file in converted.glob("rank-*")} == {str(ranks)}
    assert len(list(converted.glob("rank-*"))) == ranks
    assert "8 training tasks" in everything
    assert "has taken a turn in a sandbox" in everything
    assert (nodes.job / "state" / "phase").read_text() == "training\n"
    assert not list((nodes.job / "state").glob("node-*.pid"))
    held = [f for f in nodes.job.rglob("*") if f.is_file() and SECRET in f.read_text("latin-1")]
    assert held == [nodes.job / "train-call.json"]


STOP = """
bash "$1" & started=$!
until [[ -s $2/train-call.json ]]; do sleep 0.2; kill -0 "$started"; done
"$3" -m cli.main stop "$2" --json
wait "$started" && code=0 || code=$?
echo "the script ended with $code"
"$3" -m cli.main stop "$2"
"""


def test_stop_ends_a_job_on_a_ray_that_others_use_and_nothing_else(nodes: TwoNodes) -> None:
    """The answers are the real Ray's: of the job that runs, of its stop, and of its end."""
    script = str(nodes.write("ray"))
    nodes.job.mkdir(parents=True, exist_ok=True)
    (nodes.job / "config.json").write_text(to_json(nodes.config("ray")))
    (nodes.job / "hold").touch()
    here = ("env", f"PYTHONPATH={REPOSITORY}", "bash", "-uc", STOP)
    done = nodes.run(*here, "-", script, str(nodes.job), sys.executable, ray=True)
    everything = done.stdout + done.stderr + nodes.logs()
    assert done.returncode == 0, everything
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found["ended"], everything
    job = (nodes.job / "state" / "submission").read_text().strip()
    assert found["did"] == f"ray job stop --address http://head:8265 {job}"
    ended = re.search(r"the script ended with (\d+)", done.stdout)
    assert ended is not None, everything
    assert int(ended[1]) != 0
    assert (nodes.job / "state" / "exit_code").read_text() == f"{ended[1]}\n"
    assert "is not running" in done.stdout
