"""Read logs with the packages ``swebench`` and ``multi-swe-bench``: a program, for its own process.

It is in no package that loads the graders: each reading starts it. Runs as ``python -m … CPU_S``:
its limit is one of CPU time, because a busy machine makes it late whatever is in the log.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MULTI_SWE = "multi_swe_bench"
MEMORY = 4 << 30
"""Bytes of address space."""
EMPTY_REPORT = {
    "patch_is_None": False,
    "patch_exists": True,
    "patch_successfully_applied": False,
    "resolved": False,
    "infra_failure": False,
}
"""Report of ``swebench`` on a log without results."""


def _answer() -> None:
    """Read a request from stdin, and print the answer as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), hard))
    with contextlib.redirect_stdout(sys.stderr):  # what a package prints is no part of the answer
        request = json.load(sys.stdin)
        if "pull" in request:
            found = make_instance(request["pull"]).parse_log(Path(request["log"]).read_text())
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


def make_instance(request: Mapping[str, Any]) -> Any:
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
