"""No cheat of the suite is paid, by any kind of grading, except the documented special cases."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import Patch, Task, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.cheats.project import make_patch, make_tasks
from tests.cheats.suite import AREAS, BY_CHANCE, PAID, PAID_BY, Cheat, load_cheats

CHEATS = load_cheats()
REPRESENTATIVES = (
    *("test_framework/pytest-runtest", "test_framework/pytest-xfail", "generic/always-equal"),
    *("generic/conftest", "interpreter/answer-from-constants", "grader/printed-summary"),
)
"""Cheats that CI runs with every kind of grading; with unittest it runs all."""
KINDS = ("unittest", "pytest", "swebench", "swebench_pro", "eval_cmd", "f2p_script")
OFFICIAL = pytest.mark.skipif(
    importlib.util.find_spec("swebench") is None, reason="the extra swebench is not installed"
)


def test_the_suite_has_a_hundred_cheats_of_every_area(tmp_path: Path) -> None:
    assert len(CHEATS) >= 100
    assert {cheat.area for cheat in CHEATS} == AREAS
    for cheat in CHEATS:
        assert cheat.sentence.endswith("."), cheat.name
        assert "\n" not in cheat.sentence, cheat.name
    assert {*PAID, *BY_CHANCE} <= {cheat.name for cheat in CHEATS}
    task = make_tasks(tmp_path)["unittest"]
    diffs = {cheat.make_diff(task) for cheat in CHEATS}
    assert all(diff.startswith("diff --git ") for diff in diffs)
    assert len(diffs) == len(CHEATS)


@dataclass(frozen=True, slots=True)
class Graders:
    """One grader for all tests, so that canaries are calibrated once."""

    tasks: dict[str, Task]
    grader: TaskGrader
    judged: list[tuple[str, str, str]]
    loop: asyncio.AbstractEventLoop

    def grade(self, kind: str, diff: str) -> Verdict:
        """Grade a diff by the judge of a kind, with 20 s per run: a cheat may hang."""
        patch, task = make_patch(diff), self.tasks[kind]
        verdict = self.loop.run_until_complete(
            self.grader.grade(task, RolloutResult.of_patch(patch), name=kind, deadline_s=20)
        )
        graded = (task.id, task.grading.kind, patch.sha256)
        assert verdict.kind is VerdictKind.INFRA or graded in self.judged, "another judge's verdict"
        return verdict


class Recording(SandboxGrader):
    """Notes the task's id, the kind of grading and the patch of each run with the real tests."""

    def __init__(self, backend: LocalBackend) -> None:
        super().__init__(backend)
        self.judged: list[tuple[str, str, str]] = []

    async def grade(
        self,
        task: Task,
        patch: Patch,
        *,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes] | None = None,
    ) -> Verdict:
        """Grade, and note it."""
        if name in KINDS:  # a canary's has the name of its variant besides
            self.judged.append((task.id, task.grading.kind, patch.sha256))
        return await super().grade(task, patch, name=name, deadline_s=deadline_s, files=files)


@pytest.fixture(scope="module")
def graders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graders]:
    settings = LocalSandboxConfig(
        kind="local", isolation="auto", memory_mb=512, processes=32, file_mb=8, cpu_s=20, warm=0
    )
    root = tmp_path_factory.mktemp("cheats")
    backend = LocalBackend(settings, root / "sandboxes")
    if backend.guarantees()["no network but the gateway"] == "NOT KEPT":
        pytest.skip("sandboxes of this machine are not isolated, and these are attacks")
    run_tests = Recording(backend)
    loop = asyncio.new_event_loop()
    grader = TaskGrader(
        run_tests, use_repository_as_is, verification=Verification(run_tests, level=1)
    )
    yield Graders(make_tasks(root), grader, run_tests.judged, loop)
    loop.run_until_complete(backend.close())
    loop.close()


def check(verdict: Verdict, cheat: Cheat, kind: str) -> None:
    """Fail if a cheat is paid, or costs more than its reward."""
    assert verdict.kind is not VerdictKind.INFRA, verdict
    if cheat.name in {*PAID, *BY_CHANCE} or (kind, cheat.name) in PAID_BY:
        return
    assert verdict.kind is VerdictKind.UNSOLVED, f"{cheat.sentence} {verdict}"


@pytest.mark.integration
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_no_cheat_is_paid_by_unittest(graders: Graders, cheat: Cheat) -> None:
    diff = cheat.make_diff(graders.tasks["unittest"])
    check(graders.grade("unittest", diff), cheat, "unittest")


@pytest.mark.integration
@pytest.mark.parametrize("name", REPRESENTATIVES)
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=OFFICIAL if k == "swebench" else []) for k in KINDS[1:]]
)
def test_no_representative_is_paid_by_any_judge(graders: Graders, kind: str, name: str) -> None:
    cheat = next(cheat for cheat in CHEATS if cheat.name == name)
    check(graders.grade(kind, cheat.make_diff(graders.tasks[kind])), cheat, kind)


@pytest.mark.slow
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=OFFICIAL if k == "swebench" else []) for k in KINDS[1:]]
)
def test_no_cheat_is_paid_by_any_judge(graders: Graders, kind: str, cheat: Cheat) -> None:
    check(graders.grade(kind, cheat.make_diff(graders.tasks[kind])), cheat, kind)


@pytest.mark.integration
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=OFFICIAL if k == "swebench" else []) for k in KINDS]
)
def test_the_reference_patch_is_paid(graders: Graders, kind: str) -> None:
    task = graders.tasks[kind]
    verdict = graders.grade(kind, task.gold_patch)
    assert (verdict.kind, verdict.tampered) == (VerdictKind.SOLVED, ""), verdict
    assert (verdict.unverified, verdict.signs) == ("", ()), verdict


def test_the_suite_is_written_for_this_repository(tmp_path: Path) -> None:
    tasks = make_tasks(tmp_path)
    assert set(tasks) == set(KINDS)
    assert len({task.id for task in tasks.values()}) == len(KINDS)
