"""The weights of a run on this machine, named by the run's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from runners.campaigns.run_weights import use_run_weights
from runners.services.policy import Policy, prepare_policy


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 3 and 4."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(compose([]).model_dump_json())
    for step in (3, 4):
        directory = run / "checkpoints" / f"step-{step:06}"
        directory.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            (directory / name).write_text("{}")
    return run


def measured(path: Path) -> Path | None:
    return use_run_weights(compose([f"model.path={path}"])).model.path


def test_a_run_s_directory_as_a_model_is_its_best_checkpoint_else_the_newest(
    run_dir: Path,
) -> None:
    checkpoints = run_dir / "checkpoints"
    assert measured(run_dir) == checkpoints / "step-000004"
    (checkpoints / "best").symlink_to("step-000003")
    assert measured(run_dir) == checkpoints / "step-000003"
    assert measured(checkpoints / "best") == checkpoints / "best"


def test_a_run_without_a_checkpoint_says_so(run_dir: Path) -> None:
    (run_dir / "checkpoints").rename(run_dir / "moved")
    with pytest.raises(ConfigError, match=r"is a run without a checkpoint.*--resume"):
        measured(run_dir)


def test_a_tiny_checkpoint_is_read_with_its_own_tokenizer(run_dir: Path) -> None:
    config = use_run_weights(compose(["scenario=mixed", f"model.path={run_dir}"]))
    newest = run_dir / "checkpoints" / "step-000004"
    assert prepare_policy(config, run_dir / "measured") == Policy(newest, newest)
    assert not (run_dir / "measured").exists(), "nothing is copied"
