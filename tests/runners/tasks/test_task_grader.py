"""The steps around one run of the tests: cache, log, repository, retry."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxError
from runners.tasks.contract import ScriptGrading, Task, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.graders.task_grader import LINE, TAIL, TaskGrader, log_file
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.fakes.hostile import STEERING, TEXTS
from tests.runners.tasks.example_repositories import make_task, patch_of, result_of
from tests.runners.tasks.pytest_tasks import ScriptedGrader, scripted_verdict

GOOD, FLAKY, BROKEN = scripted_verdict(2, 2), scripted_verdict(2, 1), scripted_verdict(1, 1)
INFRA = replace(scripted_verdict(0, 0), kind=VerdictKind.INFRA)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("task"))


async def grade(grader: TaskGrader, task: Task, diff: bytes = b"d") -> Verdict:
    return await grader.grade(task, result_of(diff), name="g", deadline_s=1)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_verdict_s_texts_are_bounded_and_safe_to_show(text: str, task: Task) -> None:
    said = replace(GOOD, log=text, reason=text, tampered=text, signs=(text,))
    verdict = await grade(TaskGrader(ScriptedGrader([said]), use_repository_as_is), task)
    for shown, limit in ((verdict.log, TAIL), (verdict.reason, LINE), (verdict.tampered, LINE)):
        assert STEERING.search(shown) is None
        assert len(shown) <= limit


async def test_a_log_is_kept_whole_and_the_verdict_has_its_end(task: Task, tmp_path: Path) -> None:
    long = replace(GOOD, log="x" * TAIL + "the end")
    file = log_file(tmp_path, task, patch_of(b"d"))
    verdict = await grade(
        TaskGrader(ScriptedGrader([long]), use_repository_as_is, log_dir=tmp_path), task
    )
    assert (len(verdict.log), verdict.log[-7:]) == (TAIL, "the end")
    assert file.read_text() == long.log
    failed = ScriptedGrader([replace(INFRA, log="no python")])
    await grade(TaskGrader(failed, use_repository_as_is, log_dir=tmp_path), task)
    assert file.read_text() == long.log, "an infra verdict does not replace a log"
    (tmp_path / "full").write_text("no directory can be made below it")
    for log_dir in (None, tmp_path / "full"):
        grader = TaskGrader(ScriptedGrader([long]), use_repository_as_is, log_dir=log_dir)
        assert await grade(grader, task) == verdict


@pytest.mark.parametrize(
    ("verdicts", "reruns", "runs", "kind"),
    [
        ([FLAKY, GOOD], 1, 2, VerdictKind.SOLVED),
        ([FLAKY, FLAKY], 1, 2, VerdictKind.UNSOLVED),
        ([FLAKY, GOOD], 0, 1, VerdictKind.UNSOLVED),
        ([BROKEN], 1, 1, VerdictKind.UNSOLVED),
        ([replace(FLAKY, fail_to_pass_passed=0, fail_to_pass_total=0)], 1, 1, VerdictKind.UNSOLVED),
        ([scripted_verdict(2, 1, timed_out=True)], 1, 1, VerdictKind.UNSOLVED),
        ([GOOD], 1, 1, VerdictKind.SOLVED),
    ],
)
async def test_only_failing_pass_to_pass_tests_are_retried(
    verdicts: list[Verdict], reruns: int, runs: int, kind: VerdictKind, task: Task
) -> None:
    scripted = ScriptedGrader(verdicts)
    grader = TaskGrader(scripted, use_repository_as_is, flaky_reruns=reruns)
    found = await grade(grader, task)
    assert (len(scripted.names), found.kind) == (runs, kind)
    assert len(set(scripted.names)) == runs, "each run has a sandbox of its own"
    assert found.duration_s == runs


async def test_the_steps_are_cache_then_log_then_repository_then_retry(
    task: Task, tmp_path: Path
) -> None:
    ensured: list[str] = []

    async def ensure(asked: Task) -> Task:
        ensured.append(asked.id)
        return replace(asked, kind="ensured")

    scripted = ScriptedGrader([replace(FLAKY, log="first"), replace(GOOD, log="second"), BROKEN])
    grader = TaskGrader(scripted, ensure, flaky_reruns=1, log_dir=tmp_path)
    first, second = await grade(grader, task), await grade(grader, task)
    assert first is second, "the retried verdict is cached"
    assert ensured == [task.id], "once for both runs, and not for a cached verdict"
    assert [done.kind for done in scripted.tasks] == ["ensured", "ensured"]
    assert log_file(tmp_path, task, patch_of(b"d")).read_text() == "second"
    await grade(grader, task, b"another")
    assert len(ensured) == 2


async def test_rows_with_one_id_and_commit_share_no_verdict_unless_they_are_graded_alike(
    task: Task,
) -> None:
    rows = [
        task,
        replace(task, grading=ScriptGrading("eval_cmd", "make test", "/repo")),
        replace(task, grading=ScriptGrading("eval_cmd", "make check", "/repo")),
        replace(task, fail_to_pass=task.fail_to_pass[:-1]),
    ]
    scripted = ScriptedGrader([GOOD, BROKEN, BROKEN, GOOD])
    grader = TaskGrader(scripted, use_repository_as_is)
    found = [(await grade(grader, row)).kind for row in [*rows, *rows]]
    patch = patch_of(b"d")
    assert len({log_file(Path("run"), row, patch) for row in [*rows, *rows]}) == len(rows)
    assert scripted.tasks == rows, "each is graded, and once"
    assert found[4:] == found[:4] == [verdict.kind for verdict in scripted.verdicts]


async def test_a_refused_patch_has_no_verdict_of_an_empty_one(task: Task) -> None:
    empty = patch_of(b"")
    refused = [replace(empty, refused=reason) for reason in ("too large", "unreadable")]
    scripted = ScriptedGrader([GOOD, BROKEN, BROKEN])
    grader = TaskGrader(scripted, use_repository_as_is)
    for patch in [empty, *refused] * 2:
        await grader.grade(task, RolloutResult.of_patch(patch), name="g", deadline_s=1)
    assert len(scripted.names) == 3


async def test_a_repository_that_cannot_be_made_is_infra_and_asked_for_again(task: Task) -> None:
    failures = [SandboxError("disk full")]

    async def ensure(asked: Task) -> Task:
        if failures:
            raise failures.pop()
        return asked

    grader = TaskGrader(ScriptedGrader([GOOD]), ensure)
    lost = await grade(grader, task)
    assert (lost.kind, lost.reason) == (VerdictKind.INFRA, "SandboxError: disk full")
    assert (await grade(grader, task)).kind is VerdictKind.SOLVED


async def test_a_caller_that_waits_for_a_cancelled_grading_grades_itself(task: Task) -> None:
    scripted = ScriptedGrader([GOOD, GOOD])
    started, never = asyncio.Event(), asyncio.Event()

    async def ensure(task: Task) -> Task:
        if not started.is_set():
            started.set()
            await never.wait()
        return task

    grader = TaskGrader(scripted, ensure)
    first = asyncio.create_task(grade(grader, task))
    await started.wait()
    second = asyncio.create_task(grade(grader, task))
    await asyncio.sleep(0)  # the second waits for the first
    first.cancel()
    assert (await second).kind is VerdictKind.SOLVED
    assert first.cancelled()
    assert len(scripted.names) == 1
