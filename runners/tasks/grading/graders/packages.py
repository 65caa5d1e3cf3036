"""Have the packages ``swebench`` and ``multi-swe-bench`` read logs, without their docker.

The code under test decides what is in a log and how long it is, and a package's patterns can take
any time and memory on a long line: in the driver they would hold up every rollout. So a process
that has limits of its own reads the logs (``package_logs.py``).

Invariant: a log solves nothing for what is in it, which a limit of CPU time and a reading of an
empty log tell. A reader that is late or lost for any other reason gives no verdict.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
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
READ_S = 60
"""CPU seconds to read logs; importing a package takes up to 5 of them."""
LATE_S = 600.0
"""On the clock, for a busy machine."""
FROM_OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)
"""Signals that no parser gets for what it reads."""
REASON = 300
"""Characters kept of a reader's error."""


class PackageError(AgentrlError):
    """A package that grades rows is missing, or does not accept a row."""

    exit_code = ExitCode.PREFLIGHT


class MultiSweError(PackageError):
    """The package ``multi-swe-bench`` is missing."""


class LostReaderError(AgentrlError):
    """A process that reads logs was late or lost, and not for what is in the log."""

    exit_code = ExitCode.SERVICE_GONE


class UnreadableLogError(Exception):
    """A parser raised, or used more than its limits; the text says which."""


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


def read_swebench(task: Task, log: bytes, *, read_s: int = READ_S) -> dict[str, Any]:
    """Return the report of ``swebench`` on a log; blocks for 1 s or more.

    Raises LostReaderError.
    """
    with log_file(log) as file:
        return _read_report(task, file, read_s)


def read_logs(logs: Sequence[tuple[Task, Path]], *, read_s: int = READ_S) -> list[dict[str, Any]]:
    """Return the reports of ``swebench`` on the logs of tasks; a process reads them.

    One that does not come to an end with all of them is followed by one for each. The report of a
    log whose reader is lost says so.
    """
    instances = [{**describe_instance(task), "log": str(file)} for task, file in logs]
    try:
        found: list[dict[str, Any]] = _read_apart({"instances": instances}, read_s)
    except (UnreadableLogError, LostReaderError):
        return [_read_report_if_any(task, file, read_s) for task, file in logs]
    return found


def _read_report_if_any(task: Task, file: Path, read_s: int) -> dict[str, Any]:
    try:
        return _read_report(task, file, read_s)
    except LostReaderError as error:
        return {**EMPTY_REPORT, "infra_failure": True, "infra_failure_reason": str(error)}


def _read_report(task: Task, file: Path, read_s: int) -> dict[str, Any]:
    """Return the report on one log; raises LostReaderError."""
    instance = describe_instance(task)
    try:
        report: dict[str, Any]
        (report,) = _read_one(lambda log: {"instances": [{**instance, "log": log}]}, file, read_s)
        return report
    except UnreadableLogError as error:
        return {**EMPTY_REPORT, "infra_failure_reason": f"the log cannot be read: {error}"}


def read_multi_swe(task: Task, log: bytes) -> tuple[set[str], set[str]] | str:
    """Return the tests that passed and the other ones, or the reason why the log is unreadable.

    Raises LostReaderError.
    """
    assert isinstance(task.grading, ScriptGrading)
    pull = json.loads(task.grading.parser)
    try:
        with log_file(log) as file:
            passed, others = _read_one(lambda log: {"pull": pull, "log": log}, file, READ_S)
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


def _read_one(make_request: Callable[[str], Mapping[str, Any]], file: Path, cpu_s: int) -> Any:
    """Return the answer to a request that names a log; raises UnreadableLogError for what is in
    the log, and LostReaderError if an empty one in its place gets no answer either.
    """
    try:
        return _read_apart(make_request(str(file)), cpu_s)
    except UnreadableLogError:
        with log_file(b"") as empty:
            try:
                _read_apart(make_request(str(empty)), cpu_s)
            except UnreadableLogError as error:
                raise LostReaderError(f"the package reads no log at all: {error}") from error
        raise


def _read_apart(request: Mapping[str, Any], cpu_s: int, *, late_s: float = LATE_S) -> Any:
    """Return the answer of a process to a request that names files; raises UnreadableLogError, and
    LostReaderError if the process was ended from outside, or had no processor.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", PROGRAM, str(cpu_s)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=late_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LostReaderError(
            f"the reader of the log had less than {cpu_s} s of a processor in {late_s:g} s: the "
            "machine is overloaded"
        ) from error
    if -done.returncode == signal.SIGXCPU:
        raise UnreadableLogError(f"its parser used more than {cpu_s} s of CPU time")
    if -done.returncode in FROM_OUTSIDE:
        name = signal.Signals(-done.returncode).name
        raise LostReaderError(f"the reader of the log was ended by {name}: is memory left?")
    if done.returncode:
        reason = done.stderr[-REASON:].decode(errors="replace").strip()
        raise UnreadableLogError(reason or f"its parser ended with exit code {done.returncode}")
    return json.loads(done.stdout)
