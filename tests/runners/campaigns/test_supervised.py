"""Supervised steps of a campaign: before its rollouts, durable, resumed like other steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runners.records.store.run_store import RunStore
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration


def write_examples(path: Path) -> Path:
    random = np.random.default_rng(0)
    ids = [random.integers(10, 200, 24).tolist() for _ in range(12)]
    lines = [{"input_ids": each, "assistant_masks": [0] * 8 + [1] * 16} for each in ids]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def first_step_done(store: RunStore) -> bool:
    return any(row.step == 1 and row.state == "done" for row in store.steps())


def test_examples_are_trained_first_a_killed_run_goes_on_with_them_and_with_no_changed_file(
    miniature: Miniature, tmp_path: Path
) -> None:
    examples = write_examples(tmp_path / "examples.jsonl")
    sft = [f"trainer.sft.path={examples}", "trainer.sft.steps=3", "trainer.sft.batch=8"]
    process = miniature.begin(*sft, "run.steps=4", "trainer.learning_rate=1e-3")
    miniature.wait_until(first_step_done, process)
    process.kill()
    process.wait()
    document = miniature.finish(miniature.resume())
    assert document["steps"] == 4
    with miniature.store() as store:
        rows = store.steps()
        assert [(row.step, row.state) for row in rows] == [(n, "done") for n in (1, 2, 3, 4)]
        steps = {record.step for record in store.rollouts(split="train", counts=True)}
        assert [event.data["examples"] for event in store.events("examples")] == [12]
    assert steps == {4}
    lines = [json.loads(line) for line in (miniature.run_dir / "metrics.jsonl").open()]
    found = [line["sft/nll"] for line in lines[:3]]
    assert found[2] < found[0]
    assert [line.get("sft/examples") for line in lines] == [8, 8, 8, None]
    of_examples = {"sft/nll", "sft/examples", "sft/tokens"}
    assert {*lines[0]} - of_examples <= {*lines[3]}
    examples.write_text(examples.read_text().splitlines()[0] + "\n")
    document = miniature.finish(miniature.resume("run.steps=5"), 5)
    assert "not the file with which the run began" in document["message"]
