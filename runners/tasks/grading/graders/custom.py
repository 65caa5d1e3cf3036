"""Judge of a plug-in: a score for what a patch did, in a fresh sandbox with the patch applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from conf.sections.plugin import PluginConfig
from runners.sandboxes.contract import Sandbox, SandboxError
from runners.sandboxes.wrappers import UNWIND_S, SandboxElsewhere
from runners.system.plugins import check_number, describe_failure, load_shared, run_beside
from runners.tasks.contract import CustomGrading, Task, Verdict, VerdictKind
from runners.tasks.grading.graders.verdicts import make_verdict


class Scorer(Protocol):
    """Scores a patch; runs in the driver, or on the node that ran the rollout."""

    async def __call__(self, row: Mapping[str, Any], sandbox: Sandbox, deadline_s: float) -> float:
        """Return a finite score: from 1 the task is solved, below it is a part of the whole.

        ``row``: the row's fields. ``sandbox``: the repository with the patch applied, without
        network; its commands run what the policy wrote, so what they print and write is data.
        Should it raise twice, it is asked to score the reference patch too, or the untouched
        repository: if it raises there as well the rollout has no grade, else the patch is the cause
        and is unsolved.
        """
        ...


async def judge_custom(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Return the verdict of a plug-in's score; raises PluginFailedError and SandboxError."""
    assert isinstance(task.grading, CustomGrading)
    plugin = PluginConfig.model_validate_json(task.grading.plugin)
    name = f"task.grader={plugin.target}"
    scorer: Scorer = load_shared(plugin, Scorer, "task.grader")
    try:
        there = SandboxElsewhere(sandbox)
        row = json.loads(task.grading.row)
        found = await run_beside(scorer, row, there, deadline_s, unwind_s=UNWIND_S)
    except SandboxError:
        raise
    except (Exception, SystemExit) as error:
        raise describe_failure(name, error) from error
    score = check_number(name, found)
    kind = VerdictKind.SOLVED if score >= 1 else VerdictKind.UNSOLVED
    verdict = make_verdict(task, kind, f"{name} scored {score:g}")
    return replace(verdict, rewards=(("reward", score),))
