"""Run an eval script with pytest's reports apart from printed output, and judge by them.

The rules are SWE-bench's: an expected failure has passed; a skipped test has not (pytest's summary
does not name it); an id that is cut off inside its parameters stands for all tests that begin with
it, if they agree. Printed output decides nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.sandboxes.program import compile_program
from runners.tasks import protection
from runners.tasks.contract import EvalScript, Task, Verdict, VerdictKind
from runners.tasks.graders.verdicts import (
    INSIDE,
    OUTPUT_LIMIT,
    PassedCounts,
    judge_counts,
    killed_after_s,
    make_verdict,
)
from runners.tasks.inside import script_runner
from runners.tasks.pytest_mounts import SITE, pytest_mounts, rewrite_paths
from runners.tasks.swebench import id_normalizer

_FOLDER = Path(script_runner.__file__).parent
RUNNER = compile_program(_FOLDER / "script_runner.py")
RUNNER_INSIDE = f"{INSIDE}/script_runner{RUNNER.suffix}"
PLUGIN = _FOLDER / f"{protection.PLUGIN}.py"
PLUGIN_FOLDER = f"{INSIDE}/report"
PASSING = frozenset({"passed", "xfailed"})


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """Result of an eval script."""

    started: bool
    """The runner has started."""
    began: bool = False
    """pytest has started and loaded the plugin."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """Node id → the worst outcome that was reported."""
    exit_code: int | None = None
    """Exit code of the script; None if it did not end."""
    log: bytes = b""
    """Everything the script printed."""
    late_s: float | None = None
    """Seconds after which the deadline killed it; None if it ended by itself."""


def script_mounts() -> dict[str, Path]:
    """Return the mounts that ``run_script`` needs; raises PytestMissingError."""
    plugin = f"{PLUGIN_FOLDER}/{PLUGIN.name}"
    return {**pytest_mounts(), RUNNER_INSIDE: RUNNER, plugin: PLUGIN}


async def run_script(
    grading: EvalScript, script: str, sandbox: Sandbox, deadline_s: float
) -> ScriptRun:
    """Run a script in the work tree; raises SandboxError."""
    nonce = secrets.token_hex(16)
    text = rewrite_paths(script, grading.workdir, sandbox.workdir)
    result = await sandbox.run(
        ["python", "-I", "-S", RUNNER_INSIDE, SITE, PLUGIN_FOLDER],
        deadline_s=deadline_s,
        stdin=f"{nonce}\n{text}".encode(errors="surrogateescape"),
        output_limit=OUTPUT_LIMIT,
    )
    return parse_run(nonce, result)


def parse_run(nonce: str, result: CommandResult) -> ScriptRun:
    """Return the result from the runner's lines; only lines with the nonce count."""
    started, began, exit_code = False, False, None
    outcomes: dict[str, str] = {}
    for line in result.stdout.decode(errors="replace").split("\n"):
        prefix, _, message = line.partition(" ")
        word, _, rest = message.partition(" ")
        if prefix != nonce:
            continue
        if word == "start":
            started = True
        elif word == "begin":
            began = True
        elif word == "exit":
            exit_code = int(rest)
        else:
            name = str(json.loads(rest))
            outcomes[name] = worse_outcome(outcomes.get(name), word)
    return ScriptRun(started, began, outcomes, exit_code, result.stderr, killed_after_s(result))


_ORDER = ("xpassed", "passed", "xfailed", "skipped", "failed", "error")


def worse_outcome(one: str | None, other: str) -> str:
    """Return the worse of two outcomes of a test."""
    return other if one is None else max(one, other, key=_ORDER.index)


async def judge_pytest(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the tests; the outcomes that our plugin reported decide."""
    assert isinstance(task.grading, EvalScript)
    run = await run_script(task.grading, task.grading.script, sandbox, deadline_s)
    return judge_run(task, run)


def judge_run(task: Task, run: ScriptRun) -> Verdict:
    """Return the verdict on a run; a test without a report has failed."""
    if not run.started and run.late_s is None:
        return make_verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    if not run.began and run.late_s is None:  # a patch can cause it; calibration finds rows that do
        return make_verdict(task, VerdictKind.UNSOLVED, "pytest did not start", log=run.log)
    outcomes = normalize_ids(task, run.outcomes)
    tally = PassedCounts(
        sum(has_passed(name, outcomes) for name in task.fail_to_pass),
        sum(has_passed(name, outcomes) for name in task.pass_to_pass),
    )
    return judge_counts(task, tally, log=run.log, late_s=run.late_s)


def normalize_ids(task: Task, outcomes: Mapping[str, str]) -> dict[str, str]:
    """Return the outcomes by the tests' names in the task; of equal names the worst counts."""
    assert isinstance(task.grading, EvalScript)
    naming = id_normalizer(json.loads(task.grading.row)["log_parser"])
    found: dict[str, str] = {}
    for name, outcome in outcomes.items():
        found[naming(name)] = worse_outcome(found.get(naming(name)), outcome)
    return found


def has_passed(name: str, outcomes: Mapping[str, str], passing: frozenset[str] = PASSING) -> bool:
    """Return whether a test passed."""
    if name in outcomes:
        return outcomes[name] in passing
    if name.count("[") <= name.count("]"):
        return False
    alike = {outcome in passing for known, outcome in outcomes.items() if known.startswith(name)}
    return alike == {True}
