"""Training set and evaluation set: each read by its own keys, and no task in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from conf.errors import AgentrlError, ConfigError, ExitCode
from conf.schema import Config
from runners.tasks.contract import VerdictKind
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SplitGrader, make_grader
from runners.tasks.repositories.task_repositories import use_repository_as_is
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.task_sets import check_sets, load_tasks
from tests.fakes.rollout_parts import FolderBackend
from tests.runners.tasks.dataset_rows import CLASSIC, COMMIT, write
from tests.runners.tasks.example_repositories import make_task, result_of
from tests.runners.tasks.pytest_tasks import ScriptedGrader, scripted_verdict

SERVED = ["model=local", "model.path=w", "model.tokenizer=w", "model.renderer=qwen3"]


@pytest.fixture(autouse=True)
def _with_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repo").mkdir()


def own_row(name: str, **changes: Any) -> dict[str, Any]:
    """Return a row of one's own, whose problem is its name."""
    row = {"instance_id": name, "problem_statement": f"{name} fails.", "repo_path": "repo"}
    return {**row, "base_commit": COMMIT, "eval_cmd": "python -m pytest tests", **changes}


def classic_row(name: str, **changes: Any) -> dict[str, Any]:
    return {**CLASSIC, "instance_id": name, "repo_path": "repo", **changes}


def configure(
    train: Sequence[Any], evaluated: Sequence[Any], *overrides: str, mixture: str = ""
) -> Config:
    """Write both files and return the configuration that reads them; ``mixture``: the sets of the
    evaluation instead.
    """
    write(Path("train.jsonl"), list(train))
    write(Path("eval.jsonl"), list(evaluated))
    task = ["task=jsonl", "task.path=train.jsonl", "run.tasks_per_step=1"]
    evaluation = ["eval_task=swebench", "eval_task.path=eval.jsonl", "run.eval_tasks=1"]
    if mixture:
        evaluation = ["eval_task=mixture", mixture]
    return compose([*SERVED, *task, *evaluation, *overrides])


TRAIN = [own_row(f"t-{number}") for number in range(3)]


def test_each_set_is_read_with_its_own_format_and_grader() -> None:
    tasks = load_tasks(configure(TRAIN, [classic_row("o__r-1")], "eval_task.grader=own"))
    assert [(task.id, task.split) for task in tasks] == [
        ("t-0", "train"),
        ("t-1", "train"),
        ("t-2", "train"),
        ("o__r-1", "held_out"),
    ], "with a set of its own for evaluation, every row of the file is trained"
    assert tasks[0].grading.kind == "eval_cmd"
    assert tasks[-1].grading.kind == "pytest"


def test_generated_tasks_are_trained_and_a_file_is_measured() -> None:
    write(Path("eval.jsonl"), [own_row("e-1")])
    small = ["task.train_tasks=2", "task.held_out_tasks=1", "run.tasks_per_step=1"]
    measured = ["eval_task=jsonl", "eval_task.path=eval.jsonl", "run.eval_tasks=1"]
    tasks = load_tasks(compose([*small, *measured]))
    assert [task.split for task in tasks] == ["train", "train", "held_out"]
    assert tasks[-1].id == "e-1"


@pytest.mark.parametrize(
    ("same", "reason"),
    [
        (own_row("t-1", problem_statement="Other."), "t-1: the same id"),
        (own_row("x", problem_statement=" t-1\nfails. "), "t-1: the statement and commit of x"),
    ],
)
def test_a_task_in_both_sets_is_refused_by_name(same: dict[str, Any], reason: str) -> None:
    config = configure(TRAIN, [own_row("e-1"), same])
    for read in (load_tasks, check_sets):
        with pytest.raises(DatasetError, match="1 of 3 training tasks") as caught:
            read(config)
        assert str(caught.value).endswith(reason)
        assert caught.value.exit_code is ExitCode.DATA_REFUSED


def test_the_same_words_at_another_commit_are_another_task() -> None:
    other = own_row("x", problem_statement="t-1 fails.", base_commit="b" * 40)
    assert len(load_tasks(configure(TRAIN, [other]))) == 4


def test_an_evaluation_set_that_is_never_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.eval_tasks=0, and eval_task=swebench"):
        configure(TRAIN, [own_row("e-1")], "run.eval_tasks=0")


def test_too_few_tasks_for_an_evaluation_are_refused() -> None:
    config = configure(TRAIN, [own_row("e-1")], "run.eval_tasks=2")
    for read in (load_tasks, check_sets):
        with pytest.raises(ConfigError, match=r"run\.eval_tasks=2 is more than the 1 tasks"):
            read(config)


def test_a_path_that_looks_like_a_key_is_named_as_it_is() -> None:
    Path("task.path=x").mkdir()
    config = configure(TRAIN, [own_row("e")], "eval_task.path='task.path=x/none.jsonl'")
    with pytest.raises(DatasetError) as refused:
        check_sets(config)
    where = "eval_task.path=task.path=x/none.jsonl"
    assert str(refused.value).startswith(f"{where}: there is no such file")


@pytest.mark.parametrize(
    ("rows", "overrides", "text"),
    [
        ([], ["eval_task.path=none.jsonl"], "eval_task.path=none.jsonl: there is no such file"),
        ([classic_row("a", repo_path=None)], [], "or set eval_task.repositories to a directory"),
        (["{"], [], "eval.jsonl has 1 malformed row"),
    ],
)
def test_a_fault_of_the_evaluation_set_names_its_own_keys(
    rows: list[Any], overrides: list[str], text: str
) -> None:
    config = configure(TRAIN, rows or [own_row("e")], *overrides)
    for read in (load_tasks, check_sets):
        with pytest.raises(AgentrlError) as caught:
            read(config)
        assert text in str(caught.value)
        assert "task.path" not in str(caught.value).replace("eval_task.", "")


def test_check_reports_both_sets() -> None:
    reports = check_sets(configure(TRAIN, [classic_row("o__r-1")]))
    assert {key: len(report.tasks) for key, report in reports.items()} == {
        "task": 3,
        "eval_task": 1,
    }


def configure_mixture(a: Sequence[Any], b: Sequence[Any], *overrides: str) -> Config:
    """Write two files and return the configuration that mixes them."""
    write(Path("a.jsonl"), list(a))
    write(Path("b.jsonl"), list(b))
    sets = "task.sets=[{path:a.jsonl,weight:3},{path:b.jsonl,name:rare}]"
    return compose([*SERVED, "task=mixture", sets, "run.tasks_per_step=4", *overrides])


def test_the_tasks_of_a_mixture_name_their_sets_and_some_of_all_are_held_out() -> None:
    rows = [own_row(f"a-{n}") for n in range(6)], [own_row(f"b-{n}") for n in range(6)]
    tasks = load_tasks(configure_mixture(*rows, "run.eval_tasks=6", "run.tasks_per_step=1"))
    assert {task.id: task.set_name for task in tasks} == {
        f"{letter}-{n}": name for letter, name in (("a", "a"), ("b", "rare")) for n in range(6)
    }
    assert {task.set_name for task in tasks if task.split == "held_out"} == {"a", "rare"}
    assert sum(task.split == "held_out" for task in tasks) == 6


def test_an_id_in_two_sets_of_a_mixture_is_refused_by_name() -> None:
    config = configure_mixture(TRAIN, [own_row("t-1"), own_row("b")])
    for read in (load_tasks, check_sets):
        with pytest.raises(DatasetError, match="1 ids are in several sets") as caught:
            read(config)
        assert str(caught.value).endswith("t-1: in a and rare")


def test_a_set_that_is_too_small_for_its_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match="asks for 3 of the 4 of a step: lower its weight"):
        load_tasks(configure_mixture(TRAIN[:2], [own_row("b")]))
    assert len(load_tasks(configure_mixture(TRAIN, [own_row("b")]))) == 4


def test_a_fault_in_a_mixture_names_the_set() -> None:
    config = configure_mixture(TRAIN, [own_row("b")])
    Path("b.jsonl").unlink()
    with pytest.raises(DatasetError, match=r"task\.sets\[1\]\.path=b\.jsonl: there is no"):
        check_sets(config)


def test_sets_of_one_name_are_refused() -> None:
    sets = "task.sets=[{path:x/a.jsonl},{path:owner/a@v1:train}]"
    with pytest.raises(ConfigError, match="several sets called a: give each its own name"):
        compose([*SERVED, "task=mixture", sets])


def test_an_evaluation_on_several_sets_shares_its_tasks_by_weight() -> None:
    write(Path("c.jsonl"), [own_row(f"c-{n}") for n in range(9)])
    sets = "eval_task.sets=[{path:eval.jsonl},{path:c.jsonl,weight:2}]"
    evaluation = [own_row(f"e-{n}") for n in range(2)]
    config = configure(TRAIN, evaluation, "run.eval_tasks=6", mixture=sets)
    held_out = [task for task in load_tasks(config) if task.split == "held_out"]
    first = [task.set_name for task in held_out[:6]]
    assert (first.count("eval"), first.count("c"), len(held_out)) == (2, 4, 11)
    assert len({task.id for task in held_out}) == 11


async def test_the_split_of_a_task_chooses_its_grader(tmp_path: Path) -> None:
    def make(reruns: int) -> TaskGrader:
        scripted = ScriptedGrader([scripted_verdict(2, 1), scripted_verdict(2, 2)])
        return TaskGrader(scripted, use_repository_as_is, flaky_reruns=reruns)

    grader = SplitGrader(train=make(0), held_out=make(1))
    task = make_task(tmp_path)
    trained = await grader.grade(task, result_of(b"d"), name="g", deadline_s=1)
    evaluated = replace(task, split="held_out")
    measured = await grader.grade(evaluated, result_of(b"d"), name="g", deadline_s=1)
    assert (trained.kind, measured.kind) == (VerdictKind.UNSOLVED, VerdictKind.SOLVED)


def test_only_a_set_of_its_own_has_a_grader_of_its_own(tmp_path: Path) -> None:
    backend = FolderBackend(tmp_path)
    own = configure(TRAIN, [own_row("e-1")])
    assert isinstance(make_grader(backend, own, use_repository_as_is, tmp_path), SplitGrader)
    alone = compose([*SERVED, "task=jsonl", "task.path=train.jsonl"])
    assert isinstance(make_grader(backend, alone, use_repository_as_is, tmp_path), TaskGrader)
