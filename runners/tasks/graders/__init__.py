"""The judges, one per kind of grading."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import Task, Verdict
from runners.tasks.graders.commands import (
    judge_command,
    judge_f2p_script,
    judge_log_parser,
    judge_pro,
    pro_mounts,
)
from runners.tasks.graders.custom import judge_custom, no_mounts
from runners.tasks.graders.eval_script import judge_pytest, script_mounts
from runners.tasks.graders.multi_swe import judge_multi_swe
from runners.tasks.graders.official import judge_official
from runners.tasks.graders.status_map import judge_status_map
from runners.tasks.graders.unittest_ids import judge_unittest, unittest_mounts


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
    "pytest": Judge(script_mounts, judge_pytest),
    "swebench": Judge(script_mounts, judge_official),
    "swebench_pro": Judge(pro_mounts, judge_pro),
    "log_parser": Judge(pro_mounts, judge_log_parser),
    "status_map": Judge(script_mounts, judge_status_map),
    "multi_swe": Judge(script_mounts, judge_multi_swe),
    "eval_cmd": Judge(script_mounts, judge_command),
    "f2p_script": Judge(script_mounts, judge_f2p_script),
    "custom": Judge(no_mounts, judge_custom),
}
"""By the ``kind`` of a task's grading."""
