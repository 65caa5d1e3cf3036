"""A run goes on with the tasks that it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from conf.compose import compose
from conf.errors import ExitCode
from conf.schema import Config
from runners.observe.adviser.adviser import advise_run
from runners.observe.adviser.history import DUPLICATES
from runners.observe.live.status import read_store_status, render
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.services.driver import DATASET, check_datasets, note_duplicates, open_run
from runners.tasks.contract import Task
from tests.fakes.records import a_rollout
from tests.runners.tasks.dataset_rows import write
from tests.runners.tasks.published_rows import ROWS


def configure(path: Path, *overrides: str) -> Config:
    served = ["engine=sglang", "engine.url=http://127.0.0.1:1", "model.renderer=qwen3"]
    weights = ["model.path=w", "model.tokenizer=w"]
    return compose([*served, *weights, "task=jsonl", f"task.path={path}", *overrides])


def test_a_run_is_not_continued_with_another_content_of_its_task_file(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"eval_cmd": "one"}\n')
    config = configure(rows)
    with open_run(config, tmp_path / "run", resume=False) as store:
        check_datasets(store, config)
        for change in (lambda: rows.write_text('{"eval_cmd": "two"}\n'), rows.unlink):
            change()
            with pytest.raises(StoreError, match="restore it") as refused:
                check_datasets(store, config)
            assert refused.value.exit_code is ExitCode.DATA_REFUSED


def test_an_evaluation_set_is_held_to_its_content_too(tmp_path: Path) -> None:
    rows, measured = tmp_path / "rows.jsonl", tmp_path / "measured.jsonl"
    rows.write_text("{}\n")
    measured.write_text("{}\n")
    config = configure(rows, "eval_task=jsonl", f"eval_task.path={measured}", "run.eval_tasks=1")
    with open_run(config, tmp_path / "run", resume=False) as store:
        check_datasets(store, config)
        measured.write_text('{"one": 1}\n')
        with pytest.raises(StoreError, match=r"eval_task\.path=.*measured.jsonl has changed"):
            check_datasets(store, config)


def test_a_run_is_not_continued_with_another_list_of_tasks_set_aside(tmp_path: Path) -> None:
    rows, names = tmp_path / "rows.jsonl", tmp_path / "names.txt"
    rows.write_text("{}\n")
    names.write_text("a\n")
    config = configure(rows, f"task.exclude={names}")
    with open_run(config, tmp_path / "run", resume=False) as store:
        check_datasets(store, config)
        names.write_text("b\n")
        with pytest.raises(StoreError, match="or its exclude: restore it"):
            check_datasets(store, config)


def test_the_number_of_tasks_that_are_set_aside_is_kept(tmp_path: Path) -> None:
    row = {**ROWS["eval_cmd"], "repo_path": "https://git.invalid/r", "base_commit": "1" * 40}
    rows = write(tmp_path / "rows.jsonl", [{**row, "instance_id": f"a-{n}"} for n in range(3)])
    (tmp_path / "names.txt").write_text("a-[01]\n")
    config = configure(rows, f"task.exclude={tmp_path / 'names.txt'}")
    with open_run(config, tmp_path / "run", resume=False) as store:
        status = read_store_status(store)
    assert status.set_aside == {"task": 2}
    console = Console(width=100)
    with console.capture() as shown:
        console.print(render(status))
    assert "2 tasks by task.exclude" in shown.get()


def test_a_run_that_held_out_its_last_rows_is_not_continued_with_others(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    held_out = configure(rows, "task.held_out_tasks=1")
    with open_run(compose([]), tmp_path / "run", resume=False) as store:  # as one of before
        check_datasets(store, configure(rows))
        with pytest.raises(StoreError, match="held out the last 1 rows") as refused:
            check_datasets(store, held_out)
        assert refused.value.exit_code is ExitCode.DATA_REFUSED
    with open_run(held_out, tmp_path / "new", resume=False) as store:
        check_datasets(store, held_out)


def test_a_run_of_an_earlier_version_has_one_file(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    with open_run(compose([]), tmp_path / "run", resume=False) as store:
        store.event(DATASET, {"path": str(rows), "sha256": "0" * 64})
        with pytest.raises(StoreError, match=r"task\.path=.*rows.jsonl has changed"):
            check_datasets(store, configure(rows))


def test_generated_tasks_and_earlier_runs_have_no_digest(tmp_path: Path) -> None:
    with open_run(compose([]), tmp_path / "run", resume=False) as store:
        check_datasets(store, compose([]))
        check_datasets(store, configure(tmp_path / "later.jsonl"))


def test_tasks_that_are_there_twice_are_kept_once_and_alarm(tmp_path: Path) -> None:
    train = [_task(f"t{number}", statement=f"problem {number}") for number in range(8)]
    doubled = [*train, _task("again", statement=" problem 3\n")]
    measured = [*doubled, _task("held", statement="problem 0", split="held_out")]
    with RunStore.create(tmp_path / "run", {}) as store:
        note_duplicates(store, train)
        assert not store.events(DUPLICATES)
        note_duplicates(store, measured)
        note_duplicates(store, measured)  # a resumed run
        [event] = store.events(DUPLICATES)
        assert event.data == {"tasks": 9, "train": 1, "held_out": 1, "example": ["t0", "held"]}
        store.put_rollout(a_rollout())
        store.begin_step(1, ["t0"])
        store.finish_step(1, {})
        [alarm] = advise_run(store)
    assert alarm.name == "duplicates"
    assert "1 held-out tasks are training tasks, too" in alarm.evidence
    assert "t0 and held" in alarm.evidence


def _task(name: str, *, statement: str, split: Literal["train", "held_out"] = "train") -> Task:
    return Task(
        id=name,
        split=split,
        repo=Path("/repo"),
        base_commit="c0",
        problem_statement=statement,
        fail_to_pass=("a", "b"),
        pass_to_pass=(),
        protected=(),
        gold_patch="",
        kind="bug",
    )
