"""The host's side of Codex: start it in the sandbox, read how it ended."""

from __future__ import annotations

from pathlib import Path

from conf import schema
from runners.harnesses.codex.result import read_result
from runners.harnesses.codex.settings import INSIDE, command, environment
from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.sandboxes.contract import Sandbox

OUTPUT_LIMIT = 2 << 20
"""Its first and its last event are in the halves that are kept."""


class CodexHarness:
    """Runs one program file, mounted where it lies; everything it writes goes to the sandbox's
    private home.
    """

    def __init__(
        self, config: schema.CodexHarness, scenario: schema.Scenario, program: Path
    ) -> None:
        self._config = config
        self._scenario = scenario
        self._program = program

    def mounts(self) -> dict[str, Path]:
        """Return the program, by its path inside."""
        return {INSIDE: self._program}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises SandboxError."""
        result = await sandbox.run(
            command(self._scenario, url=sandbox.gateway_url or "", model=context.model),
            deadline_s=context.deadline_s,
            env=dict(environment(context.api_key)),
            stdin=context.problem_statement.encode(),
            output_limit=OUTPUT_LIMIT,
        )
        return read_result(result, self._config.version)
