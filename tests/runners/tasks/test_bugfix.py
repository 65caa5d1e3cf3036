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
from runners.tasks.bugfix.family import RepositoryError, TaskRootError, write_repository
from runners.tasks.bugfix.kinds import BUG_KINDS, NEW_KINDS, PLACES, BugKind
from runners.tasks.bugfix.project import API, CHECK, Project, draw_project
from tests.runners.tasks.lookups import KEYS, measure_lookup

KINDS = (*BUG_KINDS, *NEW_KINDS)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


def draw_of_kind(kind: BugKind, seed: int = 0) -> Project:
    """Draw a project of a kind."""
    return draw_project(random.Random(seed), "train", [kind])


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


def test_there_are_several_kinds_and_each_place_tells_the_fix_of_some() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 6
    for kinds in (BUG_KINDS, NEW_KINDS):
        assert {kind.place for kind in kinds} == {"check", API}


@every_kind
def test_the_base_fails_the_right_tests_the_fix_none_and_a_wrong_fix_some(
    kind: BugKind, tmp_path: Path
) -> None:
    project = draw_of_kind(kind)
    write_repository(tmp_path, project.files)
    tests = (*project.fail_to_pass, *project.pass_to_pass)
    assert find_failing(tmp_path, tests) == set(project.fail_to_pass)
    bug = tmp_path / project.path
    for statement in project.wrong[:3]:
        bug.write_text(project.replace_bug(statement))
        assert find_failing(tmp_path, tests) == set(project.fail_to_pass)
    bug.write_text(project.replace_bug(project.fix))
    assert find_failing(tmp_path, tests) == set()


@every_kind
def test_the_check_prints_what_demonstrations_show(kind: BugKind, tmp_path: Path) -> None:
    project = draw_of_kind(kind, 0)
    write_repository(tmp_path, project.files)
    for statement in (project.broken, project.fix, *project.wrong[:2]):
        (tmp_path / project.path).write_text(project.replace_bug(statement))
        printed = subprocess.run(CHECK.split(), cwd=tmp_path, capture_output=True, check=True)
        assert printed.stderr == b""
        assert printed.stdout.decode() == project.predict_check(statement) + "\n"


@every_kind
def test_the_right_value_is_at_its_place_and_nowhere_else(kind: BugKind) -> None:
    for seed in range(30):
        project = draw_of_kind(kind, seed)
        before, after = project.around
        value = project.fix.removeprefix(before).removesuffix(after)
        (other,) = (place for place in PLACES if place != project.place)
        seen = re.compile(rf"\b{value}\b")
        assert seen.search(project.look(project.place))
        assert not seen.search(project.look(other))
        assert not seen.search(project.problem_statement + project.files[project.path])
        assert not seen.search("".join(project.files))


@pytest.fixture(scope="module")
def projects() -> dict[str, list[Project]]:
    """Return projects by split, as many as a campaign has."""
    rng = random.Random(0)
    sizes: dict[project_names.NameSplit, int] = {"train": 512, "held_out": 128}
    return {split: [draw_project(rng, split) for _ in range(n)] for split, n in sizes.items()}


@pytest.mark.parametrize("name", KEYS)
def test_no_table_of_what_is_visible_before_looking_knows_the_fix(
    name: str, projects: dict[str, list[Project]]
) -> None:
    assert measure_lookup(KEYS[name], projects["train"], projects["held_out"]) <= 0.06


def test_a_table_of_the_evidence_knows_the_fix(projects: dict[str, list[Project]]) -> None:
    def read_evidence(project: Project) -> str:
        return project.look(project.place).rpartition("!= ")[2]

    rate = measure_lookup(read_evidence, projects["train"], projects["held_out"])
    assert rate > 0.4, "the right value is at its place"


@every_kind
def test_the_gold_patch_is_what_git_prints_for_the_fix(kind: BugKind, tmp_path: Path) -> None:
    project = draw_of_kind(kind, seed=1)
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


def test_new_kinds_are_held_out_and_leave_the_training_tasks_alone(tmp_path: Path) -> None:
    trained, new = (
        bugfix.build(tmp_path / kinds, seed=5, train=4, held_out=6, held_out_kinds=kinds)
        for kinds in ("trained", "new")
    )
    kinds = {(task.split, task.kind) for task in new if task.split == "held_out"}
    assert kinds == {("held_out", kind.name) for kind in NEW_KINDS}
    assert [task.base_commit for task in new[:4]] == [task.base_commit for task in trained[:4]]


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
        return functions, set(re.findall(r"^ROW = \{'\w+': (\d+)\}$", text, re.MULTILINE))

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
        assert len(set(astuple(drawn))) == 7


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
