"""Any agent program, by the commands that install and run it (``harness=command``).

The prompt and the configuration files go in by stdin and by variables of the environment, and the
key by the environment only: neither is in a command line.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from conf.program_versions import find_installed_version
from conf.programs import command_directory
from conf.sections.harness import CommandHarnessConfig
from runners.gateway.refusal import PROMPT_TOO_LONG, TURNS_SPENT
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.external_program import OUTPUT_LIMIT, describe_timeout, make_result
from runners.rollouts.harnesses.installation import ProgramError, run_installer
from runners.sandboxes.contract import CommandResult, Sandbox
from runners.system.processes import atomic_directory

PROMPT_FILE = "/tmp/agentrl-prompt.md"
CONTENT = "AGENTRL_FILE_{}"
"""Variable that brings a file of the home directory."""
TAIL = 20_000
"""Bytes of the output in which the gateway's words are looked for."""


class CommandHarness:
    """Runs a shell command in the sandbox."""

    def __init__(self, config: CommandHarnessConfig) -> None:
        self._config = config
        self._inside = f"/opt/agentrl/{config.name}"

    def mounts(self) -> dict[str, Path]:
        """Return what was installed, by its path inside; raises ProgramError if it is missing."""
        if self._config.install is None:
            return {}
        return {self._inside: find_command(self._config)}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises SandboxError."""
        config = self._config
        values = {
            "base_url": sandbox.gateway_url or "",
            "api_key": context.api_key,
            "model": context.model,
            "prompt_file": PROMPT_FILE,
            "directory": self._inside,
            "workdir": sandbox.workdir,
        }
        env = {name: _fill(value, values) for name, value in config.env.items()}
        for number, file in enumerate(config.files):
            env[CONTENT.format(number)] = _fill(file.content, values)
        ended = await sandbox.run(
            ["sh", "-c", build_script(config, values)],
            deadline_s=context.deadline_s,
            env=env,
            stdin=context.prompt.encode(),
            output_limit=OUTPUT_LIMIT,
        )
        return read_result(ended, config.name, find_installed_version(config.install))


def build_script(config: CommandHarnessConfig, values: dict[str, str]) -> str:
    """Return the shell script that writes the files and becomes the program."""
    lines = ["set -e", f"cat > {PROMPT_FILE}"]
    for number, file in enumerate(config.files):
        name, path = CONTENT.format(number), f'"$HOME"/{shlex.quote(file.path)}'
        lines += [f'mkdir -p "$(dirname {path})"', f'printf %s "${name}" > {path}', f"unset {name}"]
    quoted = {name: shlex.quote(value) for name, value in values.items() if name != "api_key"}
    command = _fill(config.run, quoted)
    return "\n".join([*lines, f"exec sh -c {shlex.quote(command)} < {PROMPT_FILE}"])


def _fill(text: str, values: dict[str, str]) -> str:
    """Replace placeholders, each once: what a value contains is no placeholder."""
    parts = []
    while text:
        found = [(text.find(f"{{{name}}}"), name) for name in values]
        at, name = min(((at, name) for at, name in found if at >= 0), default=(len(text), ""))
        parts.append(text[:at])
        if not name:
            break
        parts.append(values[name])
        text = text[at + len(name) + 2 :]
    return "".join(parts)


def read_result(command: CommandResult, name: str, version: str | None = None) -> HarnessResult:
    """Turn the end of the program into a result; never raises. ``version``: what is installed.

    It says nothing about its end but its exit code; the gateway's own refusals are recognised in
    what it prints.
    """
    printed = (command.stdout[-TAIL:] + command.stderr[-TAIL:]).decode(errors="replace")
    code, message = OutcomeCode.POLICY_FINISHED, ""
    if command.timed_out:
        code, message = OutcomeCode.BUDGET_WALL, describe_timeout(command)
    elif TURNS_SPENT in printed:
        code = OutcomeCode.BUDGET_TURNS
    elif PROMPT_TOO_LONG in printed:
        code = OutcomeCode.BUDGET_TOKENS
    elif command.exit_code:
        code, message = OutcomeCode.INFRA_HARNESS, f"{name} ended with {command.exit_code}"
    facts = {"program": name} | ({} if version is None else {"version": version})
    return make_result(command, code, message, None, facts)


def find_command(config: CommandHarnessConfig) -> Path:
    """Return the directory of the installed program; raises ProgramError if it is missing."""
    directory = command_directory(config)
    if not directory.is_dir():
        raise ProgramError(
            f"{config.name} is not at {directory}: install it with `agentrl check …` and the same "
            "harness keys"
        )
    return directory


def install_command(config: CommandHarnessConfig) -> None:
    """Run ``harness.install`` in a new directory, unless that was done; raises ProgramError.

    Takes up to ten minutes and blocks.
    """
    directory = command_directory(config)
    if config.install is None or directory.is_dir():
        return
    hint = f"run `{config.install}` by hand in {directory}"
    try:
        with atomic_directory(directory) as target:
            run_installer(config.name, ["sh", "-ec", config.install], target, hint)
    except OSError as error:
        raise ProgramError(f"cannot install {config.name} in {directory}: {error}") from error
