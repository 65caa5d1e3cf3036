"""Generated bug-fix tasks: their bugs, fixes and tests, and the separation of the splits."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import astuple
from itertools import combinations, permutations
from pathlib import Path

import pytest

from runners.tasks import bugfix
from runners.tasks.bugfix import project_names
from runners.tasks.bugfix.bug_kinds import BUG_KINDS, BugKind, evaluate
from runners.tasks.bugfix.family import RepositoryError, TaskRootError, write_repository
from runners.tasks.bugfix.project import Project, draw_project

KIND_NAMES = [kind.name for kind in BUG_KINDS]


def find_kind(name: str) -> BugKind:
    """Return the bug kind of a name."""
    return next(kind for kind in BUG_KINDS if kind.name == name)


def draw_of_kind(kind: str, seed: int = 0) -> Project:
    """Draw projects until one is of a kind."""
    rng = random.Random(seed)
    while (project := draw_project(rng, "train")).kind != kind:
        pass
    return project


def git(directory: Path, *arguments: str) -> str:
    """Run git and return its output."""
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, check=True)
    return done.stdout.decode()


def find_failing(directory: Path, tests: tuple[str, ...]) -> set[str]:
    """Run tests in a fresh interpreter and return those that do not pass."""
    command = [sys.executable, "-B", "-m", "unittest", "-v", *tests]
    done = subprocess.run(command, cwd=directory, capture_output=True, check=False)
    printed = done.stderr.decode()
    passed = set(re.findall(r"\((tests\.[\w.]+)\) \.\.\. ok$", printed, re.MULTILINE))
    assert len(re.findall(r"\.\.\. (?:ok|FAIL|ERROR)$", printed, re.MULTILINE)) == len(tests)
    return set(tests) - passed


def test_there_are_several_kinds_of_bugs() -> None:
    assert len(set(KIND_NAMES)) == len(BUG_KINDS) >= 6


@pytest.mark.parametrize("name", KIND_NAMES)
def test_the_cases_of_a_kind_fail_everything_but_the_wanted_expression(name: str) -> None:
    kind = find_kind(name)
    for behaviour in kind.behaviours:
        cases = kind.cases(random.Random(3), behaviour.expression)
        for other in kind.expressions:
            same = all(
                evaluate(behaviour.expression, case) == evaluate(other, case) for case in cases
            )
            assert same == (other == behaviour.expression)


@pytest.mark.parametrize("name", KIND_NAMES)
def test_the_base_fails_the_right_tests_the_fix_none_and_a_wrong_fix_some(
    name: str, tmp_path: Path
) -> None:
    project = draw_of_kind(name)
    write_repository(tmp_path, project.files)
    tests = (*project.fail_to_pass, *project.pass_to_pass)
    assert find_failing(tmp_path, tests) == set(project.fail_to_pass)
    bug = tmp_path / project.path
    for statement in project.wrong:
        bug.write_text(project.replace_bug(statement))
        assert find_failing(tmp_path, tests) & set(project.fail_to_pass)
    bug.write_text(project.replace_bug(project.fix))
    assert find_failing(tmp_path, tests) == set()


@pytest.mark.parametrize("name", KIND_NAMES)
def test_the_gold_patch_is_what_git_prints_for_the_fix(name: str, tmp_path: Path) -> None:
    project = draw_of_kind(name, seed=1)
    write_repository(tmp_path, project.files)
    (tmp_path / project.path).write_text(project.replace_bug(project.fix))
    assert git(tmp_path, "diff", "--abbrev=7") == project.gold_patch


def test_the_same_seed_gives_the_same_commits_and_another_seed_others(tmp_path: Path) -> None:
    one = bugfix.build(tmp_path / "one", seed=5, train=3, held_out=2)
    again = bugfix.build(tmp_path / "again", seed=5, train=3, held_out=2)
    other = bugfix.build(tmp_path / "other", seed=6, train=3, held_out=2)
    assert [task.base_commit for task in one] == [task.base_commit for task in again]
    assert not {task.base_commit for task in one} & {task.base_commit for task in other}


def test_a_smaller_family_is_the_beginning_of_a_larger_one(tmp_path: Path) -> None:
    small = bugfix.build(tmp_path / "small", seed=5, train=2, held_out=1)
    large = bugfix.build(tmp_path / "large", seed=5, train=4, held_out=3)
    assert {task.base_commit for task in small} <= {task.base_commit for task in large}


def test_a_repository_is_clean_and_at_its_base_commit(tmp_path: Path) -> None:
    for task in bugfix.build(tmp_path / "tasks", seed=0, train=2, held_out=1):
        assert git(task.repo, "status", "--porcelain") == ""
        assert git(task.repo, "rev-parse", "HEAD").strip() == task.base_commit
        assert set(task.protected) == set(git(task.repo, "ls-files", "tests").split())
        git(task.repo, "fsck", "--strict")


def test_the_gold_patch_applies(tmp_path: Path) -> None:
    task = bugfix.build(tmp_path / "tasks", seed=0, train=1, held_out=1)[0]
    patch = tmp_path / "gold.patch"
    patch.write_text(task.gold_patch)
    git(task.repo, "apply", "--check", str(patch))


def test_the_users_git_configuration_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = bugfix.build(tmp_path / "plain", seed=0, train=1, held_out=1)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody Else")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[core]\n\tautocrlf = true\n[init]\n\tdefaultBranch = x\n")
    configured = bugfix.build(tmp_path / "configured", seed=0, train=1, held_out=1)
    assert [task.base_commit for task in plain] == [task.base_commit for task in configured]


def test_the_splits_share_no_project_and_no_constant() -> None:
    def drawn(split: project_names.NameSplit) -> tuple[set[tuple[str, str]], set[str]]:
        rng = random.Random(split)
        projects = [draw_project(rng, split) for _ in range(300)]
        text = "\n".join(content for project in projects for content in project.files.values())
        functions = {(one.path, one.problem_statement) for one in projects}
        return functions, set(re.findall(r"^[A-Z]+ = (\d+)$", text, re.MULTILINE))

    drawings = [drawn(split) for split in ("train", "held_out", "bootstrap")]
    for place in (0, 1):
        found = [drawing[place] for drawing in drawings]
        assert all(len(one) > 100 for one in found)
        assert all(not one & other for one, other in combinations(found, 2))


def test_every_project_name_has_one_split() -> None:
    counts = Counter(
        project_names.assign_split(*words) for words in permutations(project_names.WORDS, 3)
    )
    share = {split: count / counts.total() for split, count in counts.items()}
    assert share["train"] == pytest.approx(0.1, abs=0.01)
    assert share["held_out"] == pytest.approx(0.1, abs=0.01)


def test_the_names_of_a_project_differ() -> None:
    for seed in range(100):
        drawn = project_names.draw_names(random.Random(seed), "held_out")
        assert len(set(astuple(drawn))) == 8


def test_only_the_docstring_identifies_the_bug() -> None:
    project = draw_of_kind("operator")
    assert project.fix not in project.problem_statement
    assert project.files[project.path].count(project.broken) == 1


def test_a_complete_root_is_reused(tmp_path: Path) -> None:
    first = bugfix.build(tmp_path / "tasks", seed=0, train=2, held_out=1)
    marker = first[0].repo / "marker"
    marker.write_text("kept")
    assert bugfix.build(tmp_path / "tasks", seed=0, train=2, held_out=1) == first
    assert marker.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


def test_a_root_with_other_tasks_is_refused(tmp_path: Path) -> None:
    bugfix.build(tmp_path / "tasks", seed=0, train=1, held_out=1)
    with pytest.raises(TaskRootError, match="remove it or choose another"):
        bugfix.build(tmp_path / "tasks", seed=1, train=1, held_out=1)


def test_a_root_without_a_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    with pytest.raises(TaskRootError, match="no complete set of tasks"):
        bugfix.build(tmp_path / "tasks", seed=0, train=1, held_out=1)


def test_a_build_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no-git-here"))
    with pytest.raises(RepositoryError, match="git is not installed"):
        bugfix.build(tmp_path / "tasks", seed=0, train=1, held_out=1)
    assert list(tmp_path.iterdir()) == []
