"""Graders that fail, stall, or lose their sandbox."""

from __future__ import annotations

from conf.fault_table import FaultKind
from runners.faults.inject import strike
from runners.faults.injection import Injection
from runners.faults.plan import Fault
from runners.tasks.contract import Grader, Patch, Task, Verdict, VerdictKind

IN_SANDBOX: frozenset[FaultKind] = frozenset({"death", "garbage"})
"""What happens to the grader's sandbox, if it makes one."""


class GraderCrash(Exception):
    """What a grader never raises."""


def grade_error(fault: Fault) -> GraderCrash:
    """Return what a hostile exception is made of: graders have no error of their own."""
    return GraderCrash(str(fault))


class FaultyGrader:
    """A ``Grader`` around a real one, whose sandboxes come from a ``FaultyBackend``."""

    def __init__(self, real: Grader, injection: Injection) -> None:
        self._real = real
        self._injection = injection

    async def grade(self, task: Task, patch: Patch, *, name: str, deadline_s: float) -> Verdict:
        """Grade; a grader's own kind of failure is a verdict, the others are raised."""
        fault = self._injection.draw("grade", name, aside=IN_SANDBOX)
        if fault is not None and fault.what == "error":
            totals = len(task.fail_to_pass), len(task.pass_to_pass)
            return Verdict(VerdictKind.INFRA, 0, totals[0], 0, totals[1], str(fault), "", 0.0)
        if fault is not None and fault.what in IN_SANDBOX:
            self._injection.armed[name] = fault
        try:
            await strike(fault, grade_error)
            return await self._real.grade(task, patch, name=name, deadline_s=deadline_s)
        finally:
            self._injection.armed.pop(name, None)
