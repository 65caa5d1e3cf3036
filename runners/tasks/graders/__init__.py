"""The judges, one per kind of grading."""

from __future__ import annotations

from runners.tasks.graders.commands import CommandJudge, F2PScriptJudge
from runners.tasks.graders.contract import Judge
from runners.tasks.graders.official import OfficialJudge
from runners.tasks.graders.pro import ProJudge
from runners.tasks.graders.pytest_ids import PytestJudge
from runners.tasks.graders.unittest_ids import UnittestJudge

JUDGES: dict[str, Judge] = {
    "unittest": UnittestJudge(),
    "pytest": PytestJudge(),
    "swebench": OfficialJudge(),
    "swebench_pro": ProJudge(),
    "eval_cmd": CommandJudge(),
    "f2p_script": F2PScriptJudge(),
}
"""By the ``kind`` of a task's grading."""
