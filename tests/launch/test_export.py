"""The weights of a job: written in Hugging Face's form, and measured by the job's directory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from launch.job_files import render_files
from launch.plan import plan_job
from runners.campaigns.run_weights import use_run_weights
from tests.fakes.cluster_config import a_config

TOOL = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()  # the options of slime's tool
parser.add_argument("--model-name", type=str, default=None)
parser.add_argument("--input-dir", type=str, required=True)
parser.add_argument("--output-dir", type=str, required=True)
parser.add_argument("--origin-hf-dir", type=str, default=None)
parser.add_argument("-f", "--force", action="store_true")
parser.add_argument("-a", "--add-missing-from-origin-hf", action="store_true")
parser.add_argument("--chunk-size", type=int, default=5 * 1024**3)
parser.add_argument("--vocab-size", type=int, default=None)
args = parser.parse_args()
os.makedirs(args.output_dir)
if os.path.exists(os.path.join(args.input_dir, "torn")):
    sys.exit("torn checkpoint")
with open(os.path.join(args.output_dir, "config.json"), "w") as file:
    json.dump(vars(args) | {"model_type": "qwen3", "path": os.environ["PYTHONPATH"]}, file)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's directory with two checkpoints, after 10 and 20 steps."""
    tool = tmp_path / "slime" / "tools" / "convert_torch_dist_to_hf.py"
    tool.parent.mkdir(parents=True)
    tool.write_text(TOOL)
    places = [f"launch.shared_dir={tmp_path}", f"launch.slime_dir={tmp_path / 'slime'}"]
    config = a_config(*places, f"launch.python={sys.executable}", model="qwen3_8b")
    root = tmp_path / "agentrl"
    (root / "launch").mkdir(parents=True)
    for name, text in render_files(plan_job(config), command=["agentrl"]).items():
        (root / "launch" / name).write_text(text)
    (root / "config.json").write_text(config.model_dump_json())
    for number in (9, 19):
        (root / "checkpoints" / f"iter_{number:07}").mkdir(parents=True)
    (root / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("19")
    return root


def export(job: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = ["bash", str(job / "launch" / "export.sh"), *words]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def test_the_newest_checkpoint_is_exported_once_and_its_path_printed(job: Path) -> None:
    done = export(job)
    assert done.returncode == 0, done.stderr
    target = job / "weights" / "agentrl-step-000020"
    assert done.stdout == f"{target}\n"
    said = json.loads((target / "config.json").read_text())
    assert said["input_dir"] == str(job / "checkpoints" / "iter_0000019")
    assert said["origin_hf_dir"] == "/shared/weights"
    assert said["vocab_size"] == 151936
    assert said["add_missing_from_origin_hf"]
    assert str(job.parent / "slime") in said["path"]
    assert "is there already" in export(job).stderr


def test_another_step_is_exported_by_its_number(job: Path) -> None:
    assert export(job, "10").stdout == f"{job / 'weights' / 'agentrl-step-000010'}\n"
    missing = export(job, "11")
    assert missing.returncode == 2
    found = "has no checkpoint after step 11: there is one after each of the steps 10 20\n"
    assert found in missing.stderr
    assert export(job, "last").returncode == 2


def test_an_export_that_failed_leaves_no_weights(job: Path) -> None:
    (job / "checkpoints" / "iter_0000019" / "torn").touch()
    assert export(job).returncode != 0
    assert not (job / "weights" / "agentrl-step-000020").exists()
    (job / "checkpoints" / "iter_0000019" / "torn").unlink()
    assert export(job).returncode == 0


def test_a_job_without_a_checkpoint_says_so(job: Path) -> None:
    (job / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("release")
    shutil.rmtree(job / "checkpoints" / "iter_0000009")
    shutil.rmtree(job / "checkpoints" / "iter_0000019")
    for words in ((), ("10",)):
        done = export(job, *words)
        assert done.returncode == 2
        assert "has no checkpoint yet: one is written every trainer.save_every" in done.stderr


def measured(path: Path) -> tuple[Path | None, Path | None]:
    lines = ["model=local", f"model.path={path}", "model.tokenizer=${model.path}"]
    model = use_run_weights(compose([*lines, "model.renderer=qwen3", "run.steps=0"])).model
    return model.path, model.tokenizer


def test_a_job_s_directory_as_a_model_is_its_newest_weights(job: Path) -> None:
    with pytest.raises(ConfigError, match=r"exported no weights: run `bash .*export\.sh"):
        measured(job)
    export(job, "10")
    (job / "weights" / "agentrl-step-000020.partial").mkdir()
    assert measured(job) == (job / "weights" / "agentrl-step-000010",) * 2
    export(job)
    assert measured(job) == (job / "weights" / "agentrl-step-000020",) * 2


def test_a_checkpoint_s_directory_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert measured(tmp_path) == (tmp_path, tmp_path)
    assert measured(tmp_path / "absent") == (tmp_path / "absent",) * 2
