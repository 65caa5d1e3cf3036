"""The host's side of mini-swe-agent: start it in the sandbox, read how it ended."""

from __future__ import annotations

from pathlib import Path

from conf import schema
from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.harnesses.mini_swe_agent.result import read_result
from runners.harnesses.mini_swe_agent.settings import (
    INSIDE,
    START,
    command,
    environment,
    settings,
)
from runners.sandboxes.contract import Sandbox
from runners.sandboxes.program import compiled

OUTPUT_LIMIT = 2 << 20
"""Its result is in the half that is kept."""
STARTER = compiled(Path(__file__).with_name("start.py"))
START_INSIDE = f"{START}{STARTER.suffix}"


class MiniSweAgentHarness:
    """Runs the package's own command, mounted where it lies, in the sandbox's Python."""

    def __init__(self, config: schema.MiniSweAgentHarness, packages: Path) -> None:
        self._config = config
        self._packages = packages

    def mounts(self) -> dict[str, Path]:
        """Return the package and what starts it, by their paths inside."""
        return {INSIDE: self._packages, START_INSIDE: STARTER}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises SandboxError."""
        chosen = settings(
            self._config,
            url=sandbox.gateway_url or "",
            model=context.model,
            workdir=sandbox.workdir,
        )
        result = await sandbox.run(
            command(START_INSIDE, chosen),
            deadline_s=context.deadline_s,
            env=dict(environment(context.api_key)),
            stdin=context.problem_statement.encode(),
            output_limit=OUTPUT_LIMIT,
        )
        return read_result(result)
