"""Run a script with the reports of pytest and of our other programs apart from printed output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runners.sandboxes.contract import CommandResult, Sandbox, compile_program
from runners.tasks.grading.graders.verdicts import INSIDE, OUTPUT_LIMIT, killed_after_s
from runners.tasks.grading.inside import script_runner
from runners.tasks.patches import protection
from runners.tasks.pytest_mounts import SITE, plugin_environment, pytest_mounts, rewrite_paths

_FOLDER = Path(script_runner.__file__).parent
RUNNER = compile_program(_FOLDER / "script_runner.py")
RUNNER_INSIDE = f"{INSIDE}/script_runner{RUNNER.suffix}"
RELAY = compile_program(_FOLDER / "relay.py")
PLUGIN = _FOLDER / f"{protection.PLUGIN}.py"
PLUGIN_FOLDER = f"{INSIDE}/report"
PROGRAM_INSIDE = f"{PLUGIN_FOLDER}/f2p_program.py"
TESTED = {
    PLUGIN.name: PLUGIN,
    "agentrl_channel.py": _FOLDER / "agentrl_channel.py",
    "agentrl_guard.py": _FOLDER / "agentrl_guard.py",
    "sitecustomize.py": _FOLDER / "end_proof.py",
    "f2p_program.py": _FOLDER / "f2p_program.py",
}
"""Modules of ours in the processes under test, by their names there. As source, because the
project's Python may be an old one.
"""


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
    """Everything the script printed; with ``apart``, to stderr."""
    stdout: bytes = b""
    """With ``apart``: what it printed to stdout."""
    parsed: CommandResult | None = None
    """Answer of the task's own parser, where it has one."""
    unproven: Mapping[str, str] = field(default_factory=dict)
    """Kind of process (pytest, unittest, python, program) → why it is not proven that one of them
    came to its end.
    """
    reached: bool = False
    """The program of a ``f2p_script`` came to its end."""
    late_s: float | None = None
    """Seconds after which the deadline killed it; None if it ended by itself."""


def script_mounts() -> dict[str, Path]:
    """Return the mounts that ``run_script`` needs; raises PytestMissingError."""
    relay = f"{INSIDE}/relay{RELAY.suffix}"
    tested = {f"{PLUGIN_FOLDER}/{name}": host for name, host in TESTED.items()}
    return {**pytest_mounts(), RUNNER_INSIDE: RUNNER, relay: RELAY, **tested}


async def run_script(
    workdir: str,
    script: str,
    sandbox: Sandbox,
    deadline_s: float,
    *,
    image: str | None = None,
    apart: bool = False,
) -> ScriptRun:
    """Run a script, in which the repository is at ``workdir``, in the work tree.

    ``apart`` keeps its stdout apart from its stderr. Raises SandboxError.
    """
    nonce = secrets.token_hex(16)
    text = rewrite_paths(script, workdir, sandbox.workdir)
    options = ["apart"] if apart else []
    result = await sandbox.run(
        ["python", "-I", "-S", RUNNER_INSIDE, SITE, PLUGIN_FOLDER, *options],
        deadline_s=deadline_s,
        env=plugin_environment(image),
        stdin=f"{nonce}\n{text}".encode(errors="surrogateescape"),
        output_limit=OUTPUT_LIMIT,
    )
    return parse_run(nonce, result)


def parse_run(nonce: str, result: CommandResult) -> ScriptRun:
    """Return the result from the runner's lines; only lines with the nonce count."""
    exit_code = None
    words: set[str] = set()
    outcomes: dict[str, str] = {}
    unproven: dict[str, str] = {}
    printed: list[bytes] = []
    for line in result.stdout.split(b"\n"):
        if not line.startswith(f"{nonce} ".encode()):
            printed.append(line)
            continue
        word, _, rest = line.decode(errors="replace").partition(" ")[2].partition(" ")
        if word == "exit":
            exit_code = int(rest)
        elif word == "unproven":
            kind, _, reason = rest.partition(" ")
            unproven.setdefault(kind, reason)
        elif rest:
            name = str(json.loads(rest))
            outcomes[name] = worse_outcome(outcomes.get(name), word)
        else:
            words.add(word)
    return ScriptRun(
        started="start" in words,
        began="begin" in words,
        outcomes=outcomes,
        exit_code=exit_code,
        log=result.stderr,
        late_s=killed_after_s(result),
        stdout=b"\n".join(printed),
        unproven=unproven,
        reached="reached" in words,
    )


_ORDER = ("xpassed", "passed", "xfailed", "skipped", "failed", "error")


def worse_outcome(one: str | None, other: str) -> str:
    """Return the worse of two outcomes of a test."""
    return other if one is None else max(one, other, key=_ORDER.index)
