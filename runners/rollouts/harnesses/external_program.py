"""Third-party agent programs as harnesses: mount the unmodified files, start them, read their end.

The task goes in on stdin and the key in the environment, so neither is in a command line, which
every process on the machine can read. Nothing that a program prints makes its reader raise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.sandboxes.contract import CommandResult, Sandbox

Event = dict[str, Any]

OUTPUT_LIMIT = 2 << 20
"""Bytes. The sandbox keeps both ends of a longer output, so the first and last event survive."""
TAIL = 2000
"""Bytes of each output that a result keeps."""


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """Command line and environment of one start; neither the key nor the task is in ``argv``."""

    argv: list[str]
    env: Mapping[str, str]
    """Variables added to the sandbox's environment."""


class ExternalProgram:
    """A harness of unmodified files, mounted where they lie on the host.

    The program writes its own files to the sandbox's private home, not to the workspace.
    """

    def __init__(
        self,
        mounts: Mapping[str, Path],
        prepare_start: Callable[[Sandbox, HarnessContext], ProgramStart],
        read_result: Callable[[CommandResult], HarnessResult],
    ) -> None:
        self._mounts = mounts
        self._prepare_start = prepare_start
        self._read_result = read_result

    def mounts(self) -> dict[str, Path]:
        """Return its files, by their paths inside."""
        return dict(self._mounts)

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises SandboxError."""
        start = self._prepare_start(sandbox, context)
        ended = await sandbox.run(
            start.argv,
            deadline_s=context.deadline_s,
            env=dict(start.env),
            stdin=context.prompt.encode(),
            output_limit=OUTPUT_LIMIT,
        )
        return self._read_result(ended)


def read_events(stdout: bytes) -> Iterator[Event]:
    """Yield every line that is a whole JSON object.

    Programs print other lines too, and the output's middle may be missing.
    """
    for line in stdout.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def join_tails(*outputs: bytes) -> str:
    """Return the ends of outputs as text."""
    ends = (output[-TAIL:].decode(errors="replace").strip() for output in outputs)
    return "\n".join(end for end in ends if end)


def describe_timeout(command: CommandResult) -> str:
    """Return the message of a program that its deadline ended."""
    return f"killed at its deadline after {command.duration_s:.0f} s"


def describe_silent_end(command: CommandResult) -> str:
    """Return the message of a program that ended without its last event."""
    return f"it ended with exit code {command.exit_code} and without a result"


def make_result(
    command: CommandResult,
    code: OutcomeCode,
    message: str,
    finish_reason: object,
    facts: dict[str, Any],
) -> HarnessResult:
    """Return the result of an ended program; a ``finish_reason`` that is no text becomes None."""
    return HarnessResult(
        code=code,
        final_message=message,
        raw_finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        exit_code=command.exit_code,
        duration_s=command.duration_s,
        output=f"{join_tails(command.stdout, command.stderr)}\n{message}".strip(),
        facts=facts,
    )
