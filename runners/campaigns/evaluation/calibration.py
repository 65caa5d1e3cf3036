"""Check tasks before they train: the reference patch solves each, every time; the empty patch and
generic attacks do not.

Invariant: each verdict is an event, and findings follow from them, so a check that is resumed
grades what is missing and nothing twice. No verdict is no finding: it is asked for again.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode, error_text
from conf.schema import Config
from runners.campaigns.evaluation.benchmarks import TASKS
from runners.campaigns.evaluation.execution import Execution, execute
from runners.campaigns.evaluation.files import CALIBRATION, replace_file
from runners.campaigns.evaluation.plan import select_tasks
from runners.campaigns.evaluation.report import CAUSES
from runners.services.driver import Interrupted, RunEnd
from runners.services.services import start_grader
from runners.system.concurrency import task_group
from runners.tasks.attacks import ATTACKS, capture_attacks
from runners.tasks.contract import CaptureLimits, HarborVerifier, Patch, Task, Verdict, VerdictKind
from runners.tasks.grading import EnsureRepository, Grader, RolloutResult

EVENT = "checked"
"""Kind of the events about a task: a verdict on a patch, a failure, the end."""
GOLD, EMPTY = "gold", "empty"
"""Names of the patches that no attack makes."""
RESTORED = "restored"
"""Instead of a verdict: nothing of the attack is left in its patch, which is the empty one."""
_OPEN = ("not_graded", "unfinished")


class CalibrationFailed(AgentrlError):
    """Some tasks are unfit or could not be graded."""

    exit_code = ExitCode.FAILURE_BUDGET


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """Result of a check."""

    document: dict[str, Any]
    """``run_dir, benchmark, times, tasks, gold_solved, empty_solved, fit, set_aside: {id: reason},
    not_graded: {id: reason}, causes: {cause: number}, attacks: {name: {sentence,
    tasks, paid}}, rows: {id: {patch: {verdict: number}}}``.
    """
    end: RunEnd


def calibrate(config: Config, run_dir: Path, *, resume: bool = False) -> CalibrationResult:
    """Grade the patches of every task; with ``resume``, those without their verdicts.

    See ``execute`` for the errors.
    """
    calibration, end = execute(_Calibration, TASKS, config, run_dir, resume=resume)
    return CalibrationResult(calibration.final, end)


@dataclass(slots=True)
class CheckedTask:
    """The verdicts on one task so far; ``add`` alone changes it."""

    times: int
    """Verdicts of each patch that are wanted."""
    verdicts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Numbers of verdicts, by patch."""
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    """The last reason of each verdict of a patch."""
    failure: str = ""
    """Reason why its attacks could not be made."""
    ended: bool = False
    """Its attacks have been made and graded."""

    def add(self, data: Mapping[str, Any]) -> None:
        """Add an event: a verdict, a failure, or the number of times at the end."""
        if "patch" in data:
            self.verdicts[data["patch"]][data["verdict"]] += 1
            self.reasons[data["patch"], data["verdict"]] = data["reason"]
        else:
            self.failure = data.get("failure", "")
            self.ended = data.get("times", 0) >= self.times

    def missing(self, patch: str) -> int:
        """Return the number of verdicts that are still to come."""
        found = self.verdicts[patch]
        return 0 if found[RESTORED] else max(0, self.times - _count_told(found))

    @property
    def sound(self) -> bool:
        """Return whether both patches are graded as they should, so that attacks tell more."""
        return (
            self.verdicts[GOLD][VerdictKind.SOLVED] >= self.times
            and self.verdicts[EMPTY][VerdictKind.UNSOLVED] >= self.times
        )

    def judge(self, task: Task) -> tuple[str, str]:
        """Return the cause for which it is set aside ("" for none, ``not_graded``, ``unfinished``)
        and the reason in words.
        """
        gold, empty = self.verdicts[GOLD], self.verdicts[EMPTY]
        solved, told = gold[VerdictKind.SOLVED], _count_told(gold)
        free = empty[VerdictKind.SOLVED]
        if not task.gold_patch and not isinstance(task.grading, HarborVerifier):
            more = " (the empty one solves it)" if free else ""
            return "gold", f"it has no reference patch that could be graded{more}"
        if solved and solved < told:
            why = self.reasons[GOLD, VerdictKind.UNSOLVED]
            return "flaky", f"the reference patch is solved in {solved} of {told} gradings: {why}"
        if free:
            often = "" if free == _count_told(empty) else f" in {free} of {_count_told(empty)}"
            return "empty", f"the empty patch solves it{often}"
        if told and not solved:
            why = self.reasons[GOLD, VerdictKind.UNSOLVED]
            return "gold", f"the reference patch does not solve it: {why}"
        paid = [
            f"{name} ({found[VerdictKind.SOLVED]} of {_count_told(found)})"
            for name, found in self.verdicts.items()
            if name in ATTACKS and found[VerdictKind.SOLVED]
        ]
        if paid:
            return "pays", f"it would pay {', '.join(paid)}"
        for name, found in self.verdicts.items():
            if self.missing(name) and found[VerdictKind.INFRA]:
                why = self.reasons[name, VerdictKind.INFRA]
                return "not_graded", f"{_describe(name)} could not be graded: {why}"
        if self.failure:
            return "not_graded", f"no attack could be made: {self.failure}"
        return ("", "") if self.ended else ("unfinished", "")


def _count_told(found: Counter[str]) -> int:
    return found[VerdictKind.SOLVED] + found[VerdictKind.UNSOLVED]


def _describe(patch: str) -> str:
    return {GOLD: "the reference patch", EMPTY: "the empty patch"}.get(patch, f"attack {patch}")


class _Calibration:
    """One execution of a check. Each object is used once."""

    def __init__(self, execution: Execution) -> None:
        self.final: dict[str, Any] = {}
        """The document of the result; empty before ``write``."""
        self._execution = execution
        self._times = execution.config.eval.attempts_per_task
        self._findings: dict[str, CheckedTask] = defaultdict(lambda: CheckedTask(self._times))
        for event in execution.store.events(EVENT):
            self._findings[event.data["task"]].add(event.data)
        self._tasks: Sequence[Task] = ()

    async def work(self) -> None:
        """Grade what is missing; raises Interrupted and CalibrationFailed."""
        execution = self._execution
        chosen = await asyncio.to_thread(select_tasks, TASKS, execution.config)
        self._tasks = [instance.task for instance in chosen.instances]
        left = [task for task in self._tasks if self._judge(task)[0] in _OPEN]
        execution.progress.begin_phase("checking tasks", 2 * self._times * len(left))
        slots = asyncio.Semaphore(execution.config.rollout.concurrency)
        async with (
            start_grader(execution.config, execution.store, remembers=False) as (grader, ensure),
            task_group() as group,
        ):
            for task in left:
                group.create_task(self._check(task, grader, ensure, slots), name=f"check-{task.id}")
        document = self._document()
        aside, lost = len(document["set_aside"]), len(document["not_graded"])
        if document["fit"] + aside + lost < document["tasks"]:
            raise Interrupted
        if aside or lost:
            raise CalibrationFailed(
                f"of {document['tasks']} tasks {aside} are set aside and {lost} could not be graded"
            )

    def _judge(self, task: Task) -> tuple[str, str]:
        return self._findings[task.id].judge(task)

    def _note(self, task: Task, **found: Any) -> None:
        data = {"task": task.id, **found}
        self._execution.store.event(EVENT, data)
        self._findings[task.id].add(data)

    async def _check(
        self, task: Task, grader: Grader, ensure: EnsureRepository, slots: asyncio.Semaphore
    ) -> None:
        """Grade the patches of a task; attacks only if it is fit without them."""
        progress, finding = self._execution.progress, self._findings[task.id]
        async with slots:
            for name in (GOLD, EMPTY):
                await self._grade(task, grader, name)
            if finding.sound and not isinstance(task.grading, HarborVerifier):
                try:
                    await self._attack(await ensure(task), task, grader)
                except (AgentrlError, OSError) as error:
                    self._note(task, failure=error_text(error))
                else:
                    if finding.failure:  # of an earlier execution
                        self._note(task, failure="")
            if self._draining:
                return
            if self._judge(task)[0] == "unfinished":
                self._note(task, times=self._times)
        cause, reason = self._judge(task)
        progress.outcomes[cause or "fit"] += 1
        progress.add_note(f"{task.id}: {reason or 'fit'}")

    @property
    def _draining(self) -> bool:
        return self._execution.driver.draining.is_set()

    async def _attack(self, ready: Task, task: Task, grader: Grader) -> None:
        """Grade the attacks on a task, ``ready`` with its repository."""
        limits = CaptureLimits.of(self._execution.config.rollout.capture)
        async with aclosing(capture_attacks(ready, limits)) as attacks:
            async for name, patch in attacks:
                if self._draining:
                    return
                missing = self._findings[task.id].missing(name)
                if patch.diff:
                    self._execution.progress.batch_size += missing
                    await self._grade(task, grader, name, patch)
                elif missing:
                    self._note(task, patch=name, verdict=RESTORED, reason=patch.refused)

    async def _grade(
        self, task: Task, grader: Grader, name: str, patch: Patch | None = None
    ) -> None:
        """Grade a patch (None: the task's own of this name) until all its verdicts are there, or
        the run is to stop. No verdict is asked for again, as often as a rollout is tried.
        """
        rollout = self._execution.config.rollout
        for number in range(self._findings[task.id].missing(name)):
            for attempt in range(rollout.attempts):
                if self._draining:
                    return
                verdict = await self._grade_once(task, grader, name, f"{number}-{attempt}", patch)
                if verdict.kind is not VerdictKind.INFRA:
                    break
            self._note(task, patch=name, verdict=verdict.kind.value, reason=verdict.reason)
            self._execution.progress.batch_done += 1

    async def _grade_once(
        self, task: Task, grader: Grader, name: str, number: str, patch: Patch | None
    ) -> Verdict:
        deadline_s = self._execution.config.rollout.deadlines.grade_s
        label = f"{task.id}-{name}-{number}"
        if patch is None:
            return await grader.grade_reference(
                task, solve=name == GOLD, name=label, deadline_s=deadline_s
            )
        result = RolloutResult.of_patch(patch)
        return await grader.grade(task, result, name=label, deadline_s=deadline_s)

    def write(self) -> None:
        """Write ``calibration.json``; raises StoreError."""
        self.final = self._document()
        text = json.dumps(self.final, indent=2)
        replace_file(self._execution.store.run_dir / CALIBRATION, text + "\n")

    def _document(self) -> dict[str, Any]:
        """Return the findings about the selected tasks."""
        judged = {task.id: self._judge(task) for task in self._tasks}
        rows = {name: self._findings[name].verdicts for name in judged}
        causes = Counter(cause for cause, _ in judged.values() if cause in CAUSES)
        return {
            "run_dir": str(self._execution.store.run_dir),
            "benchmark": TASKS.name,
            "times": self._times,
            "tasks": len(judged),
            "gold_solved": sum(
                row[GOLD][VerdictKind.SOLVED] >= self._times for row in rows.values()
            ),
            "empty_solved": sum(row[EMPTY][VerdictKind.SOLVED] > 0 for row in rows.values()),
            "fit": sum(not cause for cause, _ in judged.values()),
            "causes": {cause: causes[cause] for cause in CAUSES if causes[cause]},
            "set_aside": {name: why for name, (cause, why) in judged.items() if cause in CAUSES},
            "not_graded": {
                name: why for name, (cause, why) in judged.items() if cause == "not_graded"
            },
            "attacks": _count_attacks(list(rows.values())),
            "rows": {
                name: {patch: +found for patch, found in verdicts.items() if found}
                for name, verdicts in rows.items()
            },
        }


def _count_attacks(rows: Sequence[Mapping[str, Counter[str]]]) -> dict[str, dict[str, Any]]:
    """Return of each attack its sentence, the tasks that it fits, and those that pay it."""
    found = {name: [row[name] for row in rows if row.get(name)] for name in ATTACKS}
    return {
        name: {
            "sentence": ATTACKS[name].sentence,
            "tasks": len(tried),
            "paid": sum(verdicts[VerdictKind.SOLVED] > 0 for verdicts in tried),
        }
        for name, tried in found.items()
        if tried
    }
