"""What SWE-bench's own tools read of an evaluation, beside its predictions: ``instances.jsonl``
(the measured tasks as rows of version 5) and ``logs/run_evaluation/RUN/MODEL/INSTANCE/``.

From inside the run directory their ``run_evaluation`` takes the evaluation for a finished one of
its own: it sums the reports up, or grades the logs again (``--rewrite_reports``). A patch whose
grading failed has no ``report.json``, which they count as an error.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.evaluation.files import replace_file
from runners.store.json_text import dumps
from runners.store.store_error import to_store_error
from runners.tasks.contract import EvalScript, Patch, Task
from runners.tasks.graders.logs import log_file
from runners.tasks.graders.official import EMPTY_REPORT, build_spec, is_installed, read_report
from runners.tasks.graders.verdicts import DOES_NOT_APPLY
from runners.tasks.patch_record import encode_patch_text

INSTANCES = "instances.jsonl"
LOGS = Path("logs", "run_evaluation")
LOG, REPORT, PATCH = "test_output.txt", "report.json", "patch.diff"


@dataclass(frozen=True, slots=True)
class Submission:
    """A task's prediction, and what became of it."""

    task: Task
    patch: Patch
    solved: bool | None
    """None: its grading failed."""
    reason: str
    """The verdict's."""

    @property
    def text(self) -> str:
        """The patch as predictions have it; empty for one that was refused."""
        return encode_patch_text(self.patch)

    @property
    def looked_at(self) -> bool:
        """Whether the package would: it tests no empty patch."""
        return bool(self.text) and isinstance(self.task.grading, EvalScript)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a patch may have failed without being wrong, as the package reads it from the log."""

    reason: str
    environment: bool
    """No patch can cause it; otherwise it may be either's fault."""


def instances(tasks: Iterable[Task]) -> str:
    """Return rows with what the package's ``make_test_spec`` asks for, a line each; tasks that are
    not in SWE-bench's format have none.
    """
    rows = [_instance(task, task.grading) for task in tasks if isinstance(task.grading, EvalScript)]
    return "".join(f"{dumps(row)}\n" for row in rows)


def run_id(run_dir: Path, sample: int) -> str:
    """Return what the package calls the run of each task's rollout ``sample``."""
    name = run_dir.resolve().name
    return name if not sample else f"{name}-{sample + 1}"


def write_logs(run_dir: Path, sample: int, model: str, submissions: Iterable[Submission]) -> None:
    """Make the log directory of a run; raises StoreError.

    What is there of the same log stays, so a resumed evaluation reads no log twice.
    """
    parent = run_dir / LOGS / run_id(run_dir, sample) / model.replace("/", "__")
    for submission in submissions:
        if not submission.looked_at:
            continue
        folder = parent / submission.task.id
        try:
            _write(run_dir, folder, submission)
        except OSError as error:
            raise to_store_error(error, folder) from error


def causes(run_dir: Path, submissions: Iterable[Submission]) -> dict[str, Cause]:
    """Return by instance what the package says of the logs of those that are not solved; nothing
    without the package.
    """
    failed = [s for s in submissions if not s.solved and s.looked_at]
    if not failed or not is_installed():
        return {}
    from swebench.harness.infra_failure import TIER_ENVIRONMENT, classify_logs

    found: dict[str, Cause] = {}
    for submission in failed:
        said = classify_logs(log_file(run_dir, submission.task.id, submission.patch))
        if said is not None:
            found[submission.task.id] = Cause(said[0], said[1] == TIER_ENVIRONMENT)
    return found


def _instance(task: Task, grading: EvalScript) -> dict[str, Any]:
    return {
        **json.loads(grading.row),
        "instance_id": task.id,
        "base_commit": task.base_commit,
        "problem_statement": task.problem_statement,
        "patch": task.gold_patch,
        "FAIL_TO_PASS": json.dumps(task.fail_to_pass),
        "PASS_TO_PASS": json.dumps(task.pass_to_pass),
        "eval_script": grading.script,
    }


def _write(run_dir: Path, folder: Path, submission: Submission) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / PATCH, submission.text)
    kept = log_file(run_dir, submission.task.id, submission.patch)
    log, report = folder / LOG, folder / REPORT
    changed = not kept.exists() or not log.exists() or not kept.samefile(log)
    if changed:
        log.unlink(missing_ok=True)
        report.unlink(missing_ok=True)
        if kept.exists():
            _link(kept, log)
    if submission.solved is None:
        report.unlink(missing_ok=True)
    elif not report.exists():
        document = {submission.task.id: _report(submission, log)}
        replace_file(report, json.dumps(document, indent=4) + "\n")


def _report(submission: Submission, log: Path) -> dict[str, Any]:
    """Return what the package says of a log, with our verdict: a log can be forged."""
    said = {**EMPTY_REPORT, "patch_successfully_applied": submission.reason != DOES_NOT_APPLY}
    if log.exists() and is_installed():
        said = read_report(submission.task, build_spec(submission.task), log)
    return {**said, "resolved": submission.solved}


def _link(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        target.hardlink_to(source)
        return
    shutil.copyfile(source, target)
