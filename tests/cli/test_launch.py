"""``agentrl launch``: scripts, plan, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentrl

JOB = [
    *("trainer=slime", "launch=slurm", "launch.shared_dir=/shared", "model=qwen3_30b_a3b"),
    *("model.path=/shared/weights", "task=jsonl", "task.path=/shared/tasks.jsonl"),
]


def test_launch_writes_the_scripts_and_names_the_one_to_start(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    done = agentrl("launch", *JOB, "--out", "job")
    assert (done.code, done.stdout) == (0, "job/slurm.sh\n")
    assert "GPU memory of the fullest rank" in done.stderr
    written_by = (tmp_path / "job" / "settings.sh").read_text().splitlines()[2]
    assert written_by == f"# Written by: agentrl launch {' '.join(JOB)} --out job"


def test_launch_warns_of_what_is_seldom_meant(agentrl: Agentrl) -> None:
    image = ["launch.container.runtime=pyxis", "launch.container.image=a.sqsh"]
    done = agentrl("launch", *JOB, *image, "model.tokenizer=/models/tokenizer", "--out", "job")
    assert done.code == 0
    told = " ".join(done.stderr.split())
    assert "model.tokenizer=/models/tokenizer is in no directory that the containers mount" in told


def test_launch_json_is_the_plan(agentrl: Agentrl) -> None:
    document = json.loads(agentrl("launch", *JOB, "--out", "job", "--json").stdout)
    assert document["topology"]["train_gpus"] == 64
    assert document["memory"]["training"]["fits"] is True
    assert document["start"] == "job/slurm.sh"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.layout.tensor=3"], "model.layout.tensor=3 does not divide"),
        (["launch.gpu_memory_gib=24"], "(launch.gpu_memory_gib) in training"),
        (["launch.extra_flags=[--colocatee]"], "did you mean --colocate?"),
        (["trainer=local"], "trainer=local trains on one machine"),
        (["launch=local"], "launch=local cannot start trainer=slime"),
        (["model=tiny"], "model=tiny is not in the table"),
    ],
)
def test_an_impossible_job_is_refused_before_anything_is_written(
    agentrl: Agentrl, tmp_path: Path, overrides: list[str], message: str
) -> None:
    keys = {line.partition("=")[0] for line in overrides}
    kept = [line for line in JOB if line.partition("=")[0] not in keys]
    if "launch=local" in overrides:
        kept = [line for line in kept if not line.startswith("launch.")]
    done = agentrl("launch", *kept, *overrides, "--out", "job")
    assert done.code == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "job").exists()
