"""Have the packages ``swebench`` and ``multi-swe-bench`` read logs, without their docker.

The code under test decides what is in a log and how long it is, and a package's patterns can take
any time and memory on a long line: in the driver they would hold up every rollout. So a process
that has limits of its own reads the logs (``package_logs.py``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from conf.suggestions import suggest
from runners.tasks.contract import ScriptGrading, Task
from runners.tasks.grading.log_parsers import PYTEST_PARSERS
from runners.tasks.package_logs import EMPTY_REPORT, MULTI_SWE, make_instance

SWEBENCH_MISSING = (
    "task.grader=official needs the package swebench>=5,<6: "
    "pip install 'agentrl-campaigns[swebench]', or set task.grader=own"
)
MULTI_SWE_MISSING = (
    "rows of Multi-SWE need the log parsers of the package multi-swe-bench: pip install "
    "multi-swe-bench"
)
PROGRAM = "runners.tasks.package_logs"
READ_S = 60.0
"""To read logs; importing a package takes up to 5 s of it."""
REASON = 300
"""Characters kept of a reader's error."""


class PackageError(AgentrlError):
    """A package that grades rows is missing, or does not accept a row."""

    exit_code = ExitCode.PREFLIGHT


class MultiSweError(PackageError):
    """The package ``multi-swe-bench`` is missing."""


class UnreadableLogError(Exception):
    """A parser raised, or did not end within its limits; the text says which."""


def is_installed() -> bool:
    """Return whether the package ``swebench`` is installed."""
    return importlib.util.find_spec("swebench") is not None


def check_parser(name: str) -> None:
    """Raise ValueError if ``swebench`` has no such log parser, PackageError if it is missing."""
    if not is_installed():
        raise PackageError(SWEBENCH_MISSING)
    if name in PYTEST_PARSERS:
        return
    from swebench.harness.log_parsers import PARSER_REGISTRY

    if name not in PARSER_REGISTRY:
        hint = suggest(name, PARSER_REGISTRY, ": did you mean {}?")
        raise ValueError(f"the package swebench has no log_parser {name}{hint}")


def check_multi_swe(request: dict[str, Any]) -> None:
    """Raise MultiSweError without the package, ValueError if it has no parser for a repository."""
    if importlib.util.find_spec(MULTI_SWE) is None:
        raise MultiSweError(MULTI_SWE_MISSING)
    make_instance(request)


def describe_instance(task: Task) -> dict[str, Any]:
    """Return a task's row as ``swebench`` takes it."""
    assert isinstance(task.grading, ScriptGrading)
    return {
        **json.loads(task.grading.parser),
        "instance_id": task.id,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
        "eval_script": task.grading.script,
    }


def build_eval_script(task: Task) -> str:
    """Return the eval script as ``swebench`` runs it; raises PackageError."""
    try:
        from swebench.harness.utils import make_test_spec
    except ImportError as error:
        raise PackageError(f"{SWEBENCH_MISSING} ({error})") from error
    script: str = make_test_spec(describe_instance(task)).eval_script
    return script


def read_swebench(task: Task, log: bytes, *, read_s: float = READ_S) -> dict[str, Any]:
    """Return the report of ``swebench`` on a log; blocks for 1 s or more."""
    with log_file(log) as file:
        (report,) = read_logs([(task, file)], read_s=read_s)
    return report


def read_logs(logs: Sequence[tuple[Task, Path]], *, read_s: float = READ_S) -> list[dict[str, Any]]:
    """Return the reports of ``swebench`` on the logs of tasks; a process reads them.

    One that does not come to an end with all of them is followed by one for each.
    """
    instances = [{**describe_instance(task), "log": str(file)} for task, file in logs]
    try:
        found: list[dict[str, Any]] = _read_apart({"instances": instances}, read_s)
    except UnreadableLogError as error:
        if len(logs) > 1:
            return [report for each in logs for report in read_logs([each], read_s=read_s)]
        return [{**EMPTY_REPORT, "infra_failure_reason": f"the log cannot be read: {error}"}]
    return found


def read_multi_swe(task: Task, log: bytes) -> tuple[set[str], set[str]] | str:
    """Return the tests that passed and the other ones, or the reason why the log is unreadable."""
    assert isinstance(task.grading, ScriptGrading)
    try:
        with log_file(log) as file:
            request = {"pull": json.loads(task.grading.parser), "log": str(file)}
            passed, others = _read_apart(request, READ_S)
    except UnreadableLogError as error:
        return f"the log cannot be read: {error}"
    return set(passed), set(others)


@contextlib.contextmanager
def log_file(log: bytes) -> Iterator[Path]:
    """Yield a file that holds a log as UTF-8, until the end of the block."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".log") as file:
        file.write(log.decode(errors="replace"))
        file.flush()
        yield Path(file.name)


def _read_apart(request: Mapping[str, Any], deadline_s: float) -> Any:
    """Return the answer of a process to a request that names files; raises UnreadableLogError."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", PROGRAM],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableLogError(f"its parser did not end within {deadline_s:g} s") from error
    if done.returncode:
        reason = done.stderr[-REASON:].decode(errors="replace").strip()
        raise UnreadableLogError(reason or f"its parser ended with exit code {done.returncode}")
    return json.loads(done.stdout)
