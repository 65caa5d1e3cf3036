"""``agentrl eval`` and ``agentrl regrade``: output and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from conf.errors import ExitCode
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from tests.cli.conftest import Agentrl

pytestmark = pytest.mark.integration

NO_TRAINING = ["run.steps=0", "run.eval_tasks=0"]


def stored(path: Path, *overrides: str, **info: Any) -> Path:
    """A directory that holds an interrupted run."""
    config = compose([*NO_TRAINING, *overrides]).model_dump(mode="json")
    with RunStore.create(path, config) as store:
        store.set_state(State.RUNNING, **info)
        store.set_state(State.INTERRUPTED, exit_code=130, **info)
    return path


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    return stored(tmp_path / "evaluation", "eval.tasks=8", benchmark="bugfix")


def test_a_mistyped_benchmark_is_a_usage_error(agentrl: Agentrl) -> None:
    done = agentrl("eval", "bugfx")
    assert done.code == ExitCode.USAGE
    assert "bugfx is not a benchmark: did you mean bugfix?" in done.stderr


def test_an_evaluation_is_not_resumed_as_a_campaign_or_vice_versa(
    agentrl: Agentrl, evaluation: Path, tmp_path: Path
) -> None:
    done = agentrl("run", "--resume", str(evaluation))
    assert done.code == ExitCode.USAGE
    assert f"agentrl eval bugfix --resume {evaluation}" in done.stderr
    campaign = stored(tmp_path / "campaign")
    done = agentrl("eval", "bugfix", "--resume", str(campaign))
    assert done.code == ExitCode.USAGE
    assert f"agentrl run --resume {campaign}" in done.stderr


def test_a_resumed_evaluation_may_grow_and_not_shrink(agentrl: Agentrl, evaluation: Path) -> None:
    done = agentrl("eval", "bugfix", "--resume", str(evaluation), "eval.tasks=7")
    assert done.code == ExitCode.USAGE
    assert "eval.tasks was 8 and can only grow, not become 7" in done.stderr
    done = agentrl("eval", "bugfix", "--resume", str(evaluation), "eval.ids=x")
    assert "eval.ids was * and cannot become x" in done.stderr


def test_status_shows_how_to_continue_an_evaluation(agentrl: Agentrl, evaluation: Path) -> None:
    document = json.loads(agentrl("status", str(evaluation), "--json").stdout)
    assert document["benchmark"] == "bugfix"
    assert document["resume"] == f"agentrl eval bugfix --resume {evaluation}"
    assert "evaluation of" in agentrl("status", str(evaluation)).stdout


def test_a_served_model_is_evaluated_without_weights_and_refused_before_anything_is_made(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    write_tiny_tokenizer(tmp_path / "tokenizer")
    nobody = ["engine=sglang", "engine.url=http://127.0.0.1:9"]
    served = [*nobody, "model.tokenizer=tokenizer", "model.renderer=qwen3"]
    done = agentrl("eval", "bugfix", *served)
    assert "model.path" not in done.stderr
    assert "Start the server that engine.url names" in done.stderr
    assert done.code == ExitCode.SERVICE_GONE
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer"]


def test_nothing_to_regrade_is_not_a_failure(agentrl: Agentrl, evaluation: Path) -> None:
    done = agentrl("regrade", str(evaluation), "--json")
    assert done.code == ExitCode.DONE, done.stderr
    document = json.loads(done.stdout)
    assert (document["chosen"], document["flips"], document["exit_code"]) == (0, [], 0)
