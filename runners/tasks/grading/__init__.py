"""Names that the other districts may import."""

from __future__ import annotations

from runners.tasks.grading.canaries.coverage import count_uncheckable
from runners.tasks.grading.graders import JUDGES
from runners.tasks.grading.graders.custom import Scorer
from runners.tasks.grading.graders.end_state import agent_limit_s, wait_healthy
from runners.tasks.grading.graders.packages import is_installed, read_logs
from runners.tasks.grading.graders.task_grader import EnsureRepository, log_file
from runners.tasks.grading.graders.verdicts import DOES_NOT_APPLY, make_verdict
from runners.tasks.grading.grading import SandboxGrader, make_grader
from runners.tasks.grading.rollout_result import Grader, RolloutResult
from runners.tasks.package_logs import EMPTY_REPORT

__all__ = [
    "DOES_NOT_APPLY",
    "EMPTY_REPORT",
    "JUDGES",
    "EnsureRepository",
    "Grader",
    "RolloutResult",
    "SandboxGrader",
    "Scorer",
    "agent_limit_s",
    "count_uncheckable",
    "is_installed",
    "log_file",
    "make_grader",
    "make_verdict",
    "read_logs",
    "wait_healthy",
]
