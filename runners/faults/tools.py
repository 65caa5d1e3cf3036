"""Tools of the native agent that fail: the agent program is started through ``tools_inside``."""

from __future__ import annotations

import json
from pathlib import Path

from runners.faults.injection import Injection
from runners.faults.plan import Fault, attempt_of
from runners.faults.tools_inside import MARK
from runners.harnesses.contract import Harness, HarnessContext, HarnessResult
from runners.harnesses.native.harness import START_INSIDE
from runners.sandboxes.contract import CommandResult, Sandbox
from runners.sandboxes.program import compile_program
from runners.sandboxes.wrappers import ForwardingSandbox

PROGRAM = compile_program(Path(__file__).with_name("tools_inside.py"))
INSIDE = f"/opt/agentrl/faults/tools_inside{PROGRAM.suffix}"


class FaultyHarness:
    """A ``Harness`` around the native one."""

    def __init__(self, real: Harness, injection: Injection) -> None:
        self._real = real
        self._injection = injection

    def mounts(self) -> dict[str, Path]:
        """Return the agent's files, and the program that starts it."""
        return {**self._real.mounts(), INSIDE: PROGRAM}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run the agent with tools that will fail as planned."""
        rollout_id, attempt = attempt_of(sandbox.spec.name)
        planned = self._injection.plan.foresee("tool", rollout_id, attempt)
        wrapped = _Detour(sandbox, planned, self._injection) if planned else sandbox
        return await self._real.run(wrapped, context)


class _Detour(ForwardingSandbox):
    """A sandbox in which the agent is started with failing tools."""

    def __init__(self, real: Sandbox, planned: dict[int, Fault], injection: Injection) -> None:
        super().__init__(real)
        self._planned = planned
        self._injection = injection

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Run a command; the agent's start goes through our program."""
        if START_INSIDE in argv:
            at = argv.index(START_INSIDE)
            argv = [*argv[:at], INSIDE, self._plan(), *argv[at:]]
        result = await super().run(
            argv, deadline_s=deadline_s, env=env, stdin=stdin, output_limit=output_limit
        )
        for line in result.stderr.decode(errors="replace").splitlines():
            k = line.removeprefix(MARK)
            if k != line and k.isdigit() and int(k) in self._planned:
                self._injection.keep(self._planned[int(k)])
        return result

    def _plan(self) -> str:
        return json.dumps(
            {k: [fault.what, fault.seconds, fault.dice] for k, fault in self._planned.items()}
        )
