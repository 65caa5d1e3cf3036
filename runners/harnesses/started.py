"""An agent program of somebody else's, as a harness: mounted, started with the task on stdin, run
to its end or deadline, its last words read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.sandboxes.contract import CommandResult, Sandbox

OUTPUT_LIMIT = 2 << 20
"""A program's first and its last event are in the halves that are kept."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a program is started; no secret and nothing of the task stands in its command line."""

    argv: list[str]
    env: Mapping[str, str]
    """What is added to the sandbox's environment."""


class StartedProgram:
    """Runs unmodified files, mounted where they lie; everything that the program writes goes to the
    sandbox's private home.
    """

    def __init__(
        self,
        mounts: Mapping[str, Path],
        start: Callable[[Sandbox, HarnessContext], Start],
        read: Callable[[CommandResult], HarnessResult],
    ) -> None:
        self._mounts = mounts
        self._start = start
        self._read = read

    def mounts(self) -> dict[str, Path]:
        """Return its files, by their paths inside."""
        return dict(self._mounts)

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises SandboxError."""
        start = self._start(sandbox, context)
        ended = await sandbox.run(
            start.argv,
            deadline_s=context.deadline_s,
            env=dict(start.env),
            stdin=context.problem_statement.encode(),
            output_limit=OUTPUT_LIMIT,
        )
        return self._read(ended)
