"""Have the packages ``swebench`` and ``multi-swe-bench`` read logs, without their docker.

The code under test decides what is in a log and how long it is, and a package's patterns can take
any time and memory on a long line: in the driver they would hold up every rollout. So a process
that has limits of its own reads the logs; this module is its program too.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import resource
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

SWEBENCH_MISSING = (
    "task.grader=official needs the package swebench>=5,<6: pip install 'agentrl[swebench]', or "
    "set task.grader=own"
)
MULTI_SWE = "multi_swe_bench"
MULTI_SWE_MISSING = (
    "rows of Multi-SWE need the log parsers of the package multi-swe-bench: pip install "
    "multi-swe-bench"
)
READ_S = 60.0
"""To read logs; importing a package takes up to 5 s of it."""
MEMORY = 4 << 30
"""Bytes of address space."""
REASON = 300
"""Characters kept of a reader's error."""
EMPTY_REPORT = {
    "patch_is_None": False,
    "patch_exists": True,
    "patch_successfully_applied": False,
    "resolved": False,
    "infra_failure": False,
}
"""Report of ``swebench`` on a log without results."""


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
    _make_instance(request)


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
            [sys.executable, "-P", "-m", __name__],
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


# --- in the process that reads --------------------------------------------------------------------


def _answer() -> None:
    """Read a request from stdin, and print the answer as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.redirect_stdout(sys.stderr):  # what a package prints is no part of the answer
        request = json.load(sys.stdin)
        if "pull" in request:
            found = _make_instance(request["pull"]).parse_log(Path(request["log"]).read_text())
            others = {*found.failed_tests, *found.skipped_tests}
            answer: Any = [sorted(found.passed_tests), sorted(others)]
        else:
            answer = [read_report(each, each.pop("log")) for each in request["instances"]]
    print(json.dumps(answer))


def read_report(instance: dict[str, Any], log: str) -> dict[str, Any]:
    """Return the report of ``swebench`` on a log file, read in this process.

    A printed line can make its parser raise: such a log counts as one without results.
    """
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    name, spec = instance["instance_id"], make_test_spec(instance)
    prediction = {"instance_id": name, "model_name_or_path": "agentrl", "model_patch": "x"}
    try:
        report: dict[str, dict[str, Any]] = get_eval_report(
            spec, prediction, log, include_tests_status=True
        )
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        reason = f"{spec.log_parser} cannot read the log ({type(error).__name__}: {error})"
        return {**EMPTY_REPORT, "infra_failure_reason": reason}
    return report[name]


def _make_instance(request: Mapping[str, Any]) -> Any:
    """Return Multi-SWE's object of a pull request, which parses its logs; raises ValueError."""
    harness = f"{MULTI_SWE}.harness"
    importlib.import_module(f"{harness}.repos")  # registers the parsers of all repositories
    image = importlib.import_module(f"{harness}.image")
    instance = importlib.import_module(f"{harness}.instance").Instance
    pull = importlib.import_module(f"{harness}.pull_request")
    request_object = pull.PullRequest(
        **request,
        **dict.fromkeys(("state", "title", "body", "fix_patch", "test_patch"), ""),
        base=pull.Base(label="", ref="", sha=""),
        resolved_issues=[],
    )
    config = image.Config(need_clone=False, global_env=None, clear_env=False)
    return instance.create(request_object, config)


if __name__ == "__main__":
    _answer()
