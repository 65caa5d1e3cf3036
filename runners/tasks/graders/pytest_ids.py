"""Judges by pytest node ids, as our plugin reported them.

The rules are SWE-bench's: an expected failure has passed, a skipped test has not (pytest's summary
does not name it), and an id that was cut off inside its parameters stands for all tests that begin
like it, if they agree. What was printed decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import EvalScript, Task, Verdict, VerdictKind
from runners.tasks.graders.scripts import ScriptRun, run_script, script_mounts
from runners.tasks.graders.verdicts import Tally, counted, verdict

PASSING = frozenset({"passed", "xfailed"})


class PytestJudge:
    """Runs the eval script and counts what pytest reported."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return pytest, its plugin and the runner."""
        return script_mounts()

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Run the tests."""
        assert isinstance(task.grading, EvalScript)
        return read(task, await run_script(task.grading, task.grading.script, sandbox, deadline_s))


def read(task: Task, run: ScriptRun) -> Verdict:
    """Return the verdict on a run; a test without a report has failed."""
    if not run.started and run.late_s is None:
        return verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    if not run.began and run.late_s is None:  # a patch can do that; calibration finds the others
        return verdict(task, VerdictKind.UNSOLVED, "pytest did not start", log=run.log)
    return counted(task, tally(task, run.outcomes), log=run.log, late_s=run.late_s)


def tally(task: Task, outcomes: Mapping[str, str]) -> Tally:
    """Count the tests that passed."""
    return Tally(
        sum(passed(name, outcomes) for name in task.fail_to_pass),
        sum(passed(name, outcomes) for name in task.pass_to_pass),
    )


def passed(name: str, outcomes: Mapping[str, str]) -> bool:
    """Whether a test did."""
    if name in outcomes:
        return outcomes[name] in PASSING
    if name.count("[") <= name.count("]"):
        return False
    alike = {outcome in PASSING for known, outcome in outcomes.items() if known.startswith(name)}
    return alike == {True}
