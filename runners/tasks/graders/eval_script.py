"""Run of an eval script in a sandbox, with pytest's reports apart from printed output."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.sandboxes.program import compile_program
from runners.tasks import protection
from runners.tasks.contract import EvalScript
from runners.tasks.graders.contract import INSIDE, OUTPUT_LIMIT, killed_after_s
from runners.tasks.inside import script_runner
from runners.tasks.pytest_mounts import SITE, pytest_mounts, rewrite_paths

_FOLDER = Path(script_runner.__file__).parent
RUNNER = compile_program(_FOLDER / "script_runner.py")
RUNNER_INSIDE = f"{INSIDE}/script_runner{RUNNER.suffix}"
PLUGIN = _FOLDER / f"{protection.PLUGIN}.py"
PLUGIN_FOLDER = f"{INSIDE}/report"


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
