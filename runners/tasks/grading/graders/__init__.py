"""The judges: of scripts, of unittest ids, and of plug-ins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import Task, Verdict
from runners.tasks.grading.graders.custom import judge_custom
from runners.tasks.grading.graders.parsers import PARSERS, judge_script, parser_mounts
from runners.tasks.grading.graders.unittest_ids import judge_unittest, unittest_mounts


@dataclass(frozen=True, slots=True)
class Judge:
    """One kind of grading: run a task's tests in a prepared sandbox, and read their results."""

    mounts: Callable[[], Mapping[str, Path]]
    """Returns the read-only files it needs, by their paths inside; raises AgentrlError."""
    judge: Callable[[Task, Sandbox, float], Awaitable[Verdict]]
    """Returns the verdict on the present work tree, within a deadline in seconds; raises
    SandboxError and OSError.
    """


JUDGES = {
    "unittest": Judge(unittest_mounts, judge_unittest),
    "custom": Judge(dict, judge_custom),
    **dict.fromkeys(PARSERS, Judge(parser_mounts, judge_script)),
}
"""By the ``kind`` of a task's grading; those of Harbor have their own (``harbor/end_state.py``)."""
