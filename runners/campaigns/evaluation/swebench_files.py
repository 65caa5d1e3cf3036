"""Write the files that SWE-bench's own tools read beside the predictions: ``instances.jsonl`` (the
measured tasks as rows of version 5) and ``logs/run_evaluation/RUN/MODEL/INSTANCE/``.

Started in the run directory, their ``run_evaluation`` treats the evaluation as a finished one of
its own: it summarizes the reports, or grades the logs again (``--rewrite_reports``). A patch whose
grading failed has no ``report.json``; they count it as an error.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.campaigns.evaluation.files import replace_file
from runners.records.store import raise_store_errors
from runners.records.text import dumps
from runners.tasks.contract import Patch, ScriptGrading, Task
from runners.tasks.grading import DOES_NOT_APPLY, EMPTY_REPORT, is_installed, log_file, read_logs
from runners.tasks.patches.patch import encode_patch_text

INSTANCES = "instances.jsonl"
LOGS = Path("logs", "run_evaluation")
LOG, REPORT, PATCH = "test_output.txt", "report.json", "patch.diff"
BATCH = 100
"""Logs that one process reads."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A task's prediction and its verdict."""

    task: Task
    patch: Patch
    solved: bool | None
    """None if the grading failed."""
    reason: str
    """Reason of the verdict."""

    @property
    def text(self) -> str:
        """The patch as in the predictions; empty if the patch was refused."""
        return encode_patch_text(self.patch)

    @property
    def is_tested(self) -> bool:
        """True if the package would test the patch; it does not test empty ones."""
        return bool(self.text) and _find_script(self.task) is not None


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A reason other than a wrong patch, which the package reads from the log of a failed test."""

    reason: str
    environment: bool
    """True if no patch can cause it; false if patch or environment may have."""


def render_instances(tasks: Iterable[Task]) -> str:
    """Return JSON lines with the keys that the package's ``make_test_spec`` needs, one per task in
    SWE-bench's format.
    """
    rows = [_instance(task, script) for task in tasks if (script := _find_script(task))]
    return "".join(f"{dumps(row)}\n" for row in rows)


def run_id(run_dir: Path, sample: int) -> str:
    """Return the package's run id for rollout number ``sample`` of each task."""
    name = run_dir.resolve().name
    return name if not sample else f"{name}-{sample + 1}"


def write_logs(run_dir: Path, sample: int, model: str, submissions: Iterable[Submission]) -> None:
    """Write the log directory of a run; raises StoreError.

    Files about an unchanged log are kept, so that a resumed evaluation parses no log twice.
    """
    parent = run_dir / LOGS / run_id(run_dir, sample) / model.replace("/", "__")
    lacking: list[Submission] = []
    for submission in submissions:
        if submission.is_tested:
            folder = parent / submission.task.id
            with raise_store_errors(folder):
                _write_log_dir(run_dir, folder, submission)
            if submission.solved is not None and not (folder / REPORT).exists():
                lacking.append(submission)
    for start in range(0, len(lacking), BATCH):
        _write_reports(parent, lacking[start : start + BATCH])


def classify_failures(run_dir: Path, submissions: Iterable[Submission]) -> dict[str, FailureCause]:
    """Return the package's classification of failed logs by instance id; empty without the
    package.
    """
    failed = [s for s in submissions if not s.solved and s.is_tested]
    if not failed or not is_installed():
        return {}
    from swebench.harness.infra_failure import TIER_ENVIRONMENT, classify_logs

    found: dict[str, FailureCause] = {}
    for submission in failed:
        cause = classify_logs(log_file(run_dir, submission.task, submission.patch))
        if cause is not None:
            found[submission.task.id] = FailureCause(cause[0], cause[1] == TIER_ENVIRONMENT)
    return found


def _find_script(task: Task) -> ScriptGrading | None:
    """Return the eval script of a task in SWE-bench's format, which the package can read too."""
    match task.grading:
        case ScriptGrading(kind="pytest" | "swebench") as grading:
            return grading
    return None


def _instance(task: Task, grading: ScriptGrading) -> dict[str, Any]:
    return {
        **json.loads(grading.parser),
        "instance_id": task.id,
        "base_commit": task.base_commit,
        "problem_statement": task.problem_statement,
        "patch": task.gold_patch,
        "FAIL_TO_PASS": json.dumps(task.fail_to_pass),
        "PASS_TO_PASS": json.dumps(task.pass_to_pass),
        "eval_script": grading.script,
    }


def _write_log_dir(run_dir: Path, folder: Path, submission: Submission) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / PATCH, submission.text)
    stored_log = log_file(run_dir, submission.task, submission.patch)
    log, report = folder / LOG, folder / REPORT
    changed = not stored_log.exists() or not log.exists() or not stored_log.samefile(log)
    if changed:
        log.unlink(missing_ok=True)
        report.unlink(missing_ok=True)
        if stored_log.exists():
            _link_or_copy(stored_log, log)
    if submission.solved is None:
        report.unlink(missing_ok=True)


def _write_reports(parent: Path, submissions: list[Submission]) -> None:
    """Write the package's reports of logs, with our own verdicts, because a log can be forged."""
    logs = {each.task.id: parent / each.task.id / LOG for each in submissions}
    found: dict[str, dict[str, Any]] = {}
    read = [each.task for each in submissions if logs[each.task.id].exists()]
    if read and is_installed():
        reports = read_logs([(task, logs[task.id]) for task in read])
        found = {task.id: report for task, report in zip(read, reports, strict=True)}
    for each in submissions:
        applied = not each.reason.startswith(DOES_NOT_APPLY)
        report = found.get(each.task.id, {**EMPTY_REPORT, "patch_successfully_applied": applied})
        document = {each.task.id: {**report, "resolved": each.solved}}
        folder = parent / each.task.id
        with raise_store_errors(folder):
            replace_file(folder / REPORT, json.dumps(document, indent=4) + "\n")


def _link_or_copy(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        target.hardlink_to(source)
        return
    shutil.copyfile(source, target)
