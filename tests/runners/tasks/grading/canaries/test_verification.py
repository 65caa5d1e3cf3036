"""Canaries on solved patches: accusations, failures, infrastructure, and what cannot be checked."""

from __future__ import annotations

import ast
import contextlib
import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from runners.tasks import bugfix
from runners.tasks.contract import (
    DecidingTest,
    Patch,
    ScriptGrading,
    Task,
    Verdict,
    VerdictKind,
)
from runners.tasks.grading.canaries.calibration import VARIANTS
from runners.tasks.grading.canaries.coverage import NO_CLAIM, NO_GOLD, NO_PYTHON, count_uncheckable
from runners.tasks.grading.canaries.held_out import find_oracle
from runners.tasks.grading.canaries.test_texts import place_tests, read_tests
from runners.tasks.grading.canaries.variants import (
    draw_negated_variant,
    draw_reworded_variant,
    is_judged_by_exit_code,
)
from runners.tasks.grading.canaries.verification import NO_VARIANT, NOT_COVERED, Verification
from runners.tasks.grading.graders.verdicts import (
    judge_exit_code,
    judge_tests,
    list_results,
    make_verdict,
)
from runners.tasks.patches.diffs import read_paths
from runners.tasks.patches.patch import decode_patch
from tests.runners.tasks.example_repositories import patch_of
from tests.runners.tasks.pytest_tasks import make_pytest_task

PATCH = patch_of(b"the agent's")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    root = tmp_path_factory.mktemp("tasks") / "root"
    built = bugfix.build(root, seed=5, train=20, held_out=1)
    return next(task for task in built if task.kind == "key")


@dataclass
class Simulated:
    """A grader whose tests answer as a patch of some character would."""

    character: str
    names: list[str] = field(default_factory=list)
    files: list[dict[str, bytes]] = field(default_factory=list)
    wrong: Collection[str] = ()
    """Tests that the patch gives a wrong value: they fail, and their negations pass."""

    async def grade(
        self,
        task: Task,
        patch: Patch,
        *,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes] | None = None,
    ) -> Verdict:
        self.names.append(name)
        self.files.append(dict(files or {}))
        gold = patch.diff == decode_patch(task.gold_patch, {}).diff
        character = "right" if gold else self.character
        verdict = self._answer(task, character, () if gold else self.wrong)
        if character == "infra" or (gold and self.character == "gold is infra"):
            return replace(verdict, kind=VerdictKind.INFRA, reason="no sandbox")
        return verdict

    def _answer(self, task: Task, character: str, wrong: Collection[str]) -> Verdict:
        if "canary " in character:
            character = "blind" if character.endswith(f" {len(self.canaries)}") else "honest"
        if character == "once" and len(self.canaries) > 1:
            character = "right"
        fixed = "passed" if character in ("blind", "once") else "failed"
        kept = "failed" if character in ("knows the file", "hangs") else "passed"
        late_s = 9.0 if character == "hangs" else None
        if isinstance(task.grading, ScriptGrading):
            if not is_judged_by_exit_code(task):
                return make_verdict(task, VerdictKind.UNSOLVED, "pytest did not start")
            if character == "right" and "reworded" in self.names[-1]:
                fixed = "passed"
            return judge_exit_code(task, int(fixed != "passed"), log=b"", late_s=late_s)
        if character == "silent" or (character == "silent once" and len(self.canaries) == 1):
            return make_verdict(task, VerdictKind.UNSOLVED, "its end is not proven")
        reverse = {"passed": "failed", "failed": "passed"}
        tests = [
            DecidingTest(name, test_set, reverse[result] if name in wrong else result)  # type: ignore[arg-type]
            for test_set, names, result in (
                ("fail_to_pass", task.fail_to_pass, fixed),
                ("pass_to_pass", task.pass_to_pass, kept),
            )
            for name in names
        ]
        return judge_tests(task, tests, log=b"", late_s=late_s)

    @property
    def canaries(self) -> list[str]:
        return [name for name in self.names if "-gold-" not in name]


def solved(task: Task) -> Verdict:
    return Verdict(VerdictKind.SOLVED, 2, 2, 3, 3, "all tests pass", "", 1.0)


async def verify(task: Task, character: str, level: int = 1) -> tuple[Verdict, Simulated]:
    grader = Simulated(character)
    verification = Verification(grader, level, secret="fixed")
    found = await verification.verify(task, PATCH, solved(task), name="g", deadline_s=60)
    return found, grader


async def test_an_honest_patch_stays_solved(task: Task) -> None:
    verdict, grader = await verify(task, "right")
    assert (verdict.kind, verdict.tampered, verdict.unverified) == (VerdictKind.SOLVED, "", "")
    assert len(grader.canaries) == 1


async def test_two_accusations_are_tampering(task: Task) -> None:
    verdict, grader = await verify(task, "blind")
    assert (verdict.kind, verdict.fail_to_pass_passed) == (VerdictKind.UNSOLVED, 0)
    assert "tests that must fail were reported as passed (tests." in verdict.tampered
    assert len(set(grader.canaries)) == 2
    first, second = (grader.files[grader.names.index(name)] for name in grader.canaries)
    assert first != second, "the second accusation comes from another variant"


async def test_one_accusation_alone_is_chance(task: Task) -> None:
    verdict, grader = await verify(task, "once")
    assert (verdict.kind, verdict.tampered) == (VerdictKind.SOLVED, "")
    assert len(set(grader.canaries)) == 3, "two of three decide"


async def test_a_patch_that_fails_other_inputs_or_words_is_unsolved_and_not_accused(
    task: Task,
) -> None:
    verdict, _ = await verify(task, "knows the file")
    assert (verdict.kind, verdict.tampered) == (VerdictKind.UNSOLVED, "")
    assert verdict.reason == "the tests pass, with other inputs they do not"
    verdict, _ = await verify(task, "hangs")
    assert verdict.reason == "the tests end in time, changed ones do not"


async def test_a_patch_under_which_changed_tests_have_no_result_is_unsolved(task: Task) -> None:
    verdict, grader = await verify(task, "silent")
    assert (verdict.kind, verdict.tampered) == (VerdictKind.UNSOLVED, "")
    assert verdict.reason == "the tests pass; of changed ones: its end is not proven"
    assert len(grader.canaries) == 2, "a busy machine may have ended the first"
    verdict, _ = await verify(task, "silent once")
    assert verdict.kind is VerdictKind.SOLVED


async def test_level_2_runs_the_same_tests_in_other_words(task: Task) -> None:
    verdict, grader = await verify(task, "right", level=2)
    assert verdict.kind is VerdictKind.SOLVED
    assert grader.canaries[1:] == ["g-reworded"]


async def test_level_0_and_unsolved_verdicts_run_nothing(task: Task) -> None:
    verdict, grader = await verify(task, "blind", level=0)
    assert (verdict, grader.names) == (solved(task), [])
    unsolved = replace(solved(task), kind=VerdictKind.UNSOLVED)
    verification = Verification(grader, 1)
    assert await verification.verify(task, PATCH, unsolved, name="g", deadline_s=1) is unsolved


@pytest.mark.parametrize("character", ["infra", "gold is infra"])
async def test_a_canary_that_cannot_be_graded_is_no_grade(task: Task, character: str) -> None:
    verdict, _ = await verify(task, character)
    assert verdict.kind is VerdictKind.INFRA
    assert verdict.reason.endswith("no sandbox")


async def test_a_task_without_a_changeable_assertion_is_unverified(
    task: Task, tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    command = replace(task, repo=tmp_path, grading=ScriptGrading("eval_cmd", "make test", "/repo"))
    verdict, grader = await verify(command, "blind")
    assert (verdict.kind, verdict.unverified) == (VerdictKind.SOLVED, NO_VARIANT)
    assert grader.names == ["g-printed-0", "g-printed-1"], "its reference patch prints no results"
    verdict, _ = await verify(replace(task, gold_patch=""), "blind")
    assert verdict.unverified.startswith("the task has no reference patch")


def in_part(task: Task, passed: Collection[str]) -> Verdict:
    tests = list_results(
        task,
        lambda name: "passed" if name in passed else "failed",
        lambda _: "passed",
    )
    return judge_tests(task, tests, log=b"")


async def verify_part(
    task: Task, character: str, passed: Collection[str], *, credit: bool = True
) -> tuple[Verdict, Simulated]:
    grader = Simulated(character, wrong={*task.fail_to_pass} - {*passed})
    verification = Verification(grader, 2, partial_credit=credit, secret="fixed")
    verdict = in_part(task, passed)
    return await verification.verify(task, PATCH, verdict, name="g", deadline_s=60), grader


async def test_a_part_that_pays_is_checked_by_canaries_and_one_that_does_not_is_not(
    task: Task,
) -> None:
    part = task.fail_to_pass[:-1]
    verdict, grader = await verify_part(task, "right", part)
    assert verdict.solved_in_part
    assert (verdict.tampered, verdict.unverified) == ("", "")
    assert len(grader.canaries) == 2, "a negation and, at level 2, other words"
    _, grader = await verify_part(task, "blind", part, credit=False)
    assert grader.names == []
    _, grader = await verify_part(task, "blind", ())
    assert grader.names == [], "nothing passed, so nothing would be paid"


async def test_a_part_that_passes_negations_is_tampering_and_its_tests_are_void(
    task: Task,
) -> None:
    verdict, _ = await verify_part(task, "blind", task.fail_to_pass[:-1])
    assert "tests that must fail were reported as passed" in verdict.tampered
    assert not verdict.solved_in_part
    assert {test.result for test in verdict.tests} == {"void", "failed"}
    assert (verdict.fail_to_pass_passed, verdict.pass_to_pass_passed) == (0, 0)


async def test_a_negated_test_of_a_test_that_fails_accuses_nobody(task: Task) -> None:
    """Whoever returns a wrong value fails the test, and may well pass its negation."""
    for name in task.fail_to_pass:
        verdict, grader = await verify_part(task, "right", [name])
        assert (verdict.tampered, verdict.unverified) == ("", "")
        assert verdict.solved_in_part, verdict
        assert [canary for canary in grader.canaries if "reworded" not in canary]


async def test_a_part_that_no_canary_covers_pays_nothing(task: Task) -> None:
    verdict, grader = await verify_part(
        replace(task, gold_patch=""), "right", task.fail_to_pass[:1]
    )
    assert verdict.unverified.startswith("the task has no reference patch")
    assert not verdict.solved_in_part
    assert verdict.tests[0].result == "void"
    assert grader.names == []
    alien = replace(task, fail_to_pass=(*task.fail_to_pass, "tests.test_alien.T.test_alien"))
    verdict, grader = await verify_part(alien, "blind", ["tests.test_alien.T.test_alien"])
    assert (verdict.unverified, verdict.tampered) == (NOT_COVERED, "")
    assert not verdict.solved_in_part
    assert grader.canaries == []


async def test_a_part_whose_tests_fail_in_other_words_is_void(task: Task) -> None:
    verdict, _ = await verify_part(task, "knows the file", task.fail_to_pass[:-1])
    assert (verdict.kind, verdict.tampered) == (VerdictKind.UNSOLVED, "")
    assert verdict.reason.startswith("the tests pass, ")
    assert not verdict.solved_in_part


def test_tasks_that_no_canary_can_check_are_known_from_their_rows(task: Task) -> None:
    script = "git apply -v - <<'E'\ndiff --git a/t.c b/t.c\n--- a/t.c\n+++ b/t.c\nE\n"
    tasks = [
        task,
        replace(task, gold_patch=""),
        replace(task, grading=ScriptGrading("pytest", script, "/testbed", "{}")),
        replace(task, grading=ScriptGrading("pytest", script.replace("t.c", "t.py"), "/x", "{}")),
        replace(task, grading=ScriptGrading("f2p_script", "import suite\n", "/repo")),
        replace(task, grading=ScriptGrading("f2p_script", "assert f(2) == 4\n", "/repo")),
        replace(task, grading=ScriptGrading("eval_cmd", "make", "/repo"), protected=("t.sh",)),
    ]
    assert count_uncheckable(tasks) == {NO_GOLD: 1, NO_PYTHON: 2, NO_CLAIM: 1}


async def test_an_exit_code_is_accused_by_one_changed_assertion_at_a_time(task: Task) -> None:
    command = replace(task, grading=ScriptGrading("eval_cmd", "python -m unittest", "/repo"))
    verdict, grader = await verify(command, "blind")
    assert verdict.tampered.startswith("a command that must fail ended with exit code 0")
    texts = read_tests(command)
    for name in grader.canaries:
        files = grader.files[grader.names.index(name)]
        assert files.keys() == texts.keys(), "those of the real tests are written, too"
        ((path, text),) = files.items() - texts.items()
        different = zip(texts[path].split(b"\n"), text.split(b"\n"), strict=True)
        assert sum(a != b for a, b in different) == 1
    verdict, _ = await verify(command, "right")
    assert (verdict.kind, verdict.tampered) == (VerdictKind.SOLVED, "")


async def test_a_patch_that_knows_its_run_has_to_guess_what_an_exit_code_should_be(
    task: Task,
) -> None:
    """It cheats in the run of the real tests; of the next ones it knows only their numbers."""
    command = replace(task, grading=ScriptGrading("eval_cmd", "python -m unittest", "/repo"))
    paid: Counter[str] = Counter()
    for character in ("cheats in no canary", "cheats in canary 1", "cheats in canary 2", "blind"):
        for _ in range(30):
            verdict, grader = await verify(command, character)
            paid[character] += verdict.kind is VerdictKind.SOLVED
            assert len(grader.canaries) <= 3
    assert paid.pop("blind") == 0
    assert all(0 < count < 23 for count in paid.values()), paid


async def test_one_accusation_by_an_exit_code_is_no_tampering_and_no_reward(task: Task) -> None:
    command = replace(task, grading=ScriptGrading("eval_cmd", "python -m unittest", "/repo"))
    for _ in range(20):
        verdict, _ = await verify(command, "cheats in canary 1")
        assert verdict.tampered == ""
        if "ended with exit code 0" in verdict.reason:
            return
    pytest.fail("the order of the canaries is drawn")


def test_other_words_for_an_exit_code_change_constants_as_a_negation_does(task: Task) -> None:
    command = replace(task, grading=ScriptGrading("eval_cmd", "python -m unittest", "/repo"))
    program = "from shop import f\nif f('ab') != 'abc':\n    raise SystemExit(1)\n"
    for row in (command, replace(task, grading=ScriptGrading("f2p_script", program, "/repo"))):
        texts = read_tests(row)
        for seed in range(20):
            variant = draw_reworded_variant(row, texts, random.Random(seed))
            assert variant is not None
            ((path, text),) = variant.files.items()
            different = zip(texts[path].split(b"\n"), text.split(b"\n"), strict=True)
            ((before, after),) = [pair for pair in different if pair[0] != pair[1]]
            assert b" + " in after
            found, known = (ast.parse(source) for source in (text, texts[path]))
            assert _constants(found) != _constants(known), (before, after)


def _constants(tree: ast.Module) -> list[str]:
    return sorted(repr(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant))


async def test_a_canary_is_calibrated_once(task: Task) -> None:
    grader = Simulated("right")
    verification = Verification(grader, 1)
    for number in range(12):
        await verification.verify(task, PATCH, solved(task), name=f"g{number}", deadline_s=60)
    assert len(grader.names) - len(grader.canaries) <= VARIANTS
    assert len({str(files) for files in grader.files}) > 1, "the variant is drawn per grading"


def test_a_variant_leaves_a_fail_to_pass_test_for_other_inputs(task: Task) -> None:
    for seed in range(20):
        variant = draw_negated_variant(task, read_tests(task), random.Random(seed))
        assert variant is not None
        assert variant.line_up is not None
        assert {*variant.line_up.copies} <= {*task.fail_to_pass}
        assert variant.line_up.right <= {*variant.must_pass}
        assert set(variant.unseen) & set(task.fail_to_pass) <= set(variant.must_pass)
        assert variant.unseen
        assert not set(variant.must_fail) & set(variant.must_pass)


SUMS = """\
import pytest

class TestSums:
    @pytest.mark.parametrize("a", [1, 2])
    # as the issue says
    def test_sum(self, a):
        assert add(a, 2 - a) == 2  # not 3
    def test_sum_2(self):
        assert add(1, 0) == 1
"""


def test_a_line_up_has_the_test_under_other_names_with_one_right_value(task: Task) -> None:
    ids = ("tests/t.py::TestSums::test_sum[1]", "tests/t.py::TestSums::test_sum[2]")
    sums = replace(task, fail_to_pass=ids, pass_to_pass=())
    places = set()
    for seed in range(20):
        variant = draw_negated_variant(sums, {"tests/t.py": SUMS.encode()}, random.Random(seed))
        assert variant is not None
        assert variant.line_up is not None
        copies = [name.partition("[")[0] for name in variant.line_up.copies[ids[0]]]
        assert copies[:2] == ["tests/t.py::TestSums::test_sum", "tests/t.py::TestSums::test_sum_3"]
        scope: dict[str, Any] = {"add": lambda a, b: a + b}
        exec(variant.files["tests/t.py"], scope)
        passing = []
        for name in copies:
            with contextlib.suppress(AssertionError):
                getattr(scope["TestSums"](), name.rpartition(":")[2])(1)
                passing.append(f"{name}[1]")
        assert [name for name in variant.line_up.right if name.endswith("[1]")] == passing
        assert {*variant.must_pass} == variant.line_up.right
        assert len(variant.must_fail) == 2 * len(copies) - 2 == 14
        places.add(copies.index(passing[0].partition("[")[0]))
    assert len(places) > 4, "the place of the right one is drawn"


def test_unseen_inputs_come_with_the_right_answers(task: Task) -> None:
    oracle = find_oracle(task)
    assert oracle is not None
    (path,) = read_paths(task.gold_patch).all
    source = (task.repo / path).read_text()
    right = next(
        line[1:] for line in task.gold_patch.split("\n") if line.startswith("+") and line[1] != "+"
    )
    wrong = next(
        line[1:] for line in task.gold_patch.split("\n") if line.startswith("-") and line[1] != "-"
    )
    scope: dict[str, object] = {}
    exec(source.replace(wrong, right), scope)
    function = scope[oracle.function]
    for seed in range(20):
        arguments, answer = oracle.draw(random.Random(seed))
        assert function(*arguments) == answer  # type: ignore[operator]


def test_the_tests_of_an_eval_script_are_those_after_its_patch(tmp_path: Path) -> None:
    task = make_pytest_task(tmp_path)
    texts = read_tests(task)
    assert list(texts) == ["tests/test_calc.py"]
    assert b"class TestMore" in texts["tests/test_calc.py"]
    variant = draw_reworded_variant(task, texts, random.Random(1))
    assert variant is not None
    placed = place_tests(task, variant.files)
    assert read_tests(placed.task) == dict(variant.files)
    assert isinstance(placed.task.grading, ScriptGrading)
    assert isinstance(task.grading, ScriptGrading)
    before, after = task.grading.script, placed.task.grading.script
    assert before.partition("diff --git")[0] == after.partition("diff --git")[0]
    assert before.partition("EOF_114329324912\n:")[2] == after.partition("EOF_114329324912\n:")[2]
