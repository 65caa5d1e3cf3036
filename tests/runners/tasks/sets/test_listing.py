"""Tasks of a dataset are listed by id, state, schema and split."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.sections.task import JsonlTaskConfig
from runners.tasks.sets.listing import TaskFilter, list_dataset
from tests.fakes.sandbox_backends import local_settings
from tests.runners.tasks.dataset_rows import write
from tests.runners.tasks.published_rows import ROWS


@pytest.mark.parametrize(
    ("wanted", "held_out", "names"),
    [
        (TaskFilter(), 0, ["own-1", "own-2", "acme_calc_pr7", "calc__555555555555"]),
        (TaskFilter(state="ready"), 0, ["own-1", "own-2"]),
        (TaskFilter(state="needs image"), 0, ["acme_calc_pr7", "calc__555555555555"]),
        (TaskFilter(state="refused"), 0, []),
        (TaskFilter(schema="r2e_gym"), 0, ["calc__555555555555"]),
        (TaskFilter(match="own*", split="train"), 4, []),
        (TaskFilter(match="*-2", split="held_out"), 4, ["own-2"]),
    ],
)
def test_tasks_are_listed_by_what_is_wanted(
    tmp_path: Path, wanted: TaskFilter, held_out: int, names: list[str]
) -> None:
    own = {**ROWS["eval_cmd"], "repo_path": "https://git.invalid/r", "base_commit": "1" * 40}
    rows = [own, {**own, "instance_id": "own-2"}, ROWS["scale_swe"], ROWS["r2e_gym"]]
    config = JsonlTaskConfig.model_validate(
        {"kind": "jsonl", "path": str(write(tmp_path / "rows.jsonl", rows)), "format": "auto"}
        | {"repositories": None, "grader": "own", "flaky_reruns": 0, "canaries": 0}
        | {"held_out_tasks": held_out}
    )
    listing, tasks = list_dataset(config, local_settings(), wanted, seed=1, show=lambda text: None)
    assert [task.id for task in listing.tasks] == [task.id for task in tasks] == names
