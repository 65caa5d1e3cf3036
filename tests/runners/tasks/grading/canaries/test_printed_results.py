"""What a solution's run prints, where its exit code alone would decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runners.tasks.contract import Patch, ScriptGrading, Task, Verdict, VerdictKind
from runners.tasks.grading.canaries.calibration import NotCalibratedError
from runners.tasks.grading.canaries.printed_results import PrintedResults, read_results
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.verdicts import make_verdict
from runners.tasks.patches.patch import decode_patch

GOLD = "--- a/a.js\n+++ b/a.js\n@@ -1 +1 @@\n-1\n+2\n"
TASK = Task(
    id="npm",
    split="train",
    repo=Path("/nowhere"),
    base_commit="c0ffee",
    problem_statement="",
    fail_to_pass=(),
    pass_to_pass=(),
    protected=(),
    gold_patch=GOLD,
    kind="",
    grading=ScriptGrading("eval_cmd", "npm test", "/repo"),
)


class ReferenceRuns:
    """Runs of the reference patch with these logs, one after the other."""

    def __init__(self, *logs: str, kind: VerdictKind = VerdictKind.SOLVED) -> None:
        self.logs = list(logs)
        self.kind = kind

    async def grade(
        self,
        task: Task,
        patch: Patch,
        *,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes] | None = None,
    ) -> Verdict:
        """Return the next verdict."""
        assert patch.diff.decode() == GOLD
        return make_verdict(task, self.kind, "", log=self.logs.pop(0).encode())


async def find(runs: ReferenceRuns, log: str, task: Task = TASK) -> str:
    return await PrintedResults(runs).find_missing(task, log, name="t", deadline_s=9)


@pytest.mark.parametrize(
    ("log", "results"),
    [
        ("ok 1 - adds # time=3.1ms\nnot ok 2 - x\n# pass 1\n", {"ok 1 - adds #", "# pass 1"}),
        ("  ✔ adds (1.2ms)\n  \x1b[32m✓\x1b[0m b (23 ms)\n  2 passing (4ms)\n  1 failing", None),
        ("PASS src/a.test.js (5.2 s)\nFAIL b.test.js\nTests:  1 failed, 5 passed, 6 total", None),
        ("1/2 Test #1: t1 ....   Passed    0.01 sec\n2/2 Test #2: t2 ...***Failed  0.0 sec", None),
        ("test a::b ... ok\ntest a::c ... FAILED\n", {"test a::b ... ok"}),
        ("--- PASS: TestX (0.00s)\n--- FAIL: TestY (0.00s)\nok  \tpkg\t0.003s", None),
        ("[       OK ] A.b (0 ms)\n[  FAILED  ] A.c", {"[ OK ] A.b"}),
        ("a.c:1: warning: passing argument 1\n   12 | return pass;\ncc -o test_ok t.c", set()),
    ],
)
def test_results_are_read_whatever_prints_them(log: str, results: set[str] | None) -> None:
    found = read_results(log)
    if results is not None:
        assert found == results
    assert not any("fail" in line.lower() and "passed" not in line for line in found)
    assert found == read_results(log.replace("1.2", "7").replace("5.2", "0.1").replace("0.00", "3"))


async def test_a_run_without_the_references_results_is_no_solution() -> None:
    reference = "ok 1 - adds\nok 2 - takes\nok 7 at random\n", "ok 2 - takes\nok 1 - adds\n"
    reason = await find(ReferenceRuns(*reference), "> npm test\n")
    assert reason == (
        "exit code 0, but 2 results of its tests are not printed (ok 1 - adds; ok 2 - takes)"
    )
    assert "1 results" in await find(ReferenceRuns(*reference), "ok 1 - adds\nnot ok 2 - takes\n")
    assert await find(ReferenceRuns(*reference), "more\nok 1 - adds\nok 2 - takes\nok 3\n") == ""


async def test_the_reference_is_run_twice_and_once_for_all_patches() -> None:
    printed = PrintedResults(ReferenceRuns("ok 1\n", "ok 1\n"))
    for log, held in (("", True), ("ok 1\n", False), ("", True)):
        assert bool(await printed.find_missing(TASK, log, name="t", deadline_s=9)) is held


@pytest.mark.parametrize(
    "task",
    [
        replace(TASK, gold_patch=""),
        replace(TASK, grading=ScriptGrading("eval_cmd", "cd /repo && python3 -m pytest", "/repo")),
        replace(TASK, grading=ScriptGrading("f2p_script", "import a", "/repo")),
    ],
)
async def test_commands_with_a_better_proof_are_not_asked(task: Task) -> None:
    assert await find(ReferenceRuns(), "", task) == ""


async def test_a_silent_command_and_a_reference_that_fails_prove_nothing() -> None:
    assert await find(ReferenceRuns("", ""), "") == ""
    unsolved = ReferenceRuns("ok 1\n", "ok 1\n", kind=VerdictKind.UNSOLVED)
    assert await find(unsolved, "") == ""


async def test_a_reference_that_could_not_be_graded_is_no_verdict() -> None:
    lost = ReferenceRuns("", kind=VerdictKind.INFRA)
    with pytest.raises(NotCalibratedError, match="the reference patch could not be graded"):
        await find(lost, "")


async def test_a_blind_exit_is_unsolved_and_not_accused() -> None:
    verification = Verification(ReferenceRuns("ok 1\n", "ok 1\n"), 1)
    solved = make_verdict(TASK, VerdictKind.SOLVED, "exit code 0", log=b"")
    patch = decode_patch("", {})
    verdict = await verification.verify(TASK, patch, solved, name="t", deadline_s=9)
    assert (verdict.kind, verdict.tampered) == (VerdictKind.UNSOLVED, "")
    assert "1 results of its tests are not printed" in verdict.reason
