"""Judge by pytest node ids, as our plugin reported them.

The rules are SWE-bench's: an expected failure has passed; a skipped test has not (pytest's summary
does not name it); an id that is cut off inside its parameters stands for all tests that begin with
it, if they agree. Printed output decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import EvalScript, Task, Verdict, VerdictKind
from runners.tasks.graders.eval_script import ScriptRun, run_script, script_mounts, worse_outcome
from runners.tasks.graders.verdicts import PassedCounts, judge_counts, make_verdict
from runners.tasks.swebench import id_normalizer

PASSING = frozenset({"passed", "xfailed"})


class PytestJudge:
    """Judges by the outcomes that pytest reported during the eval script."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return pytest, its plugin and the runner."""
        return script_mounts()

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Run the tests."""
        assert isinstance(task.grading, EvalScript)
        run = await run_script(task.grading, task.grading.script, sandbox, deadline_s)
        return judge_run(task, run)


def judge_run(task: Task, run: ScriptRun) -> Verdict:
    """Return the verdict on a run; a test without a report has failed."""
    if not run.started and run.late_s is None:
        return make_verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    if not run.began and run.late_s is None:  # a patch can cause it; calibration finds rows that do
        return make_verdict(task, VerdictKind.UNSOLVED, "pytest did not start", log=run.log)
    outcomes = normalize_ids(task, run.outcomes)
    tally = PassedCounts(
        sum(has_passed(name, outcomes) for name in task.fail_to_pass),
        sum(has_passed(name, outcomes) for name in task.pass_to_pass),
    )
    return judge_counts(task, tally, log=run.log, late_s=run.late_s)


def normalize_ids(task: Task, outcomes: Mapping[str, str]) -> dict[str, str]:
    """Return the outcomes by the tests' names in the task; of equal names the worst counts."""
    assert isinstance(task.grading, EvalScript)
    naming = id_normalizer(json.loads(task.grading.row)["log_parser"])
    found: dict[str, str] = {}
    for name, outcome in outcomes.items():
        found[naming(name)] = worse_outcome(found.get(naming(name)), outcome)
    return found


def has_passed(name: str, outcomes: Mapping[str, str], passing: frozenset[str] = PASSING) -> bool:
    """Return whether a test passed."""
    if name in outcomes:
        return outcomes[name] in passing
    if name.count("[") <= name.count("]"):
        return False
    alike = {outcome in passing for known, outcome in outcomes.items() if known.startswith(name)}
    return alike == {True}
