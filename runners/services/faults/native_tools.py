"""Make tools of the native agent fail: its program is started through ``tools_inside``.

Inside a sandbox there is no plan and no store: the faults of an attempt are foreseen and passed in,
and what happened comes back on stderr.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.sandboxes.contract import CommandResult, Sandbox, compile_program
from runners.sandboxes.wrappers import ForwardingSandbox
from runners.services.faults.plan import Fault, Injection, parse_attempt
from runners.services.faults.tools_inside import MARK

if TYPE_CHECKING:  # a gateway on its own has no attempts
    from runners.rollouts.contract import Harness, HarnessContext, HarnessResult

PROGRAM = compile_program(Path(__file__).with_name("tools_inside.py"))
INSIDE = f"/opt/agentrl/faults/tools_inside{PROGRAM.suffix}"


class FaultyToolsHarness:
    """The native ``Harness``, with tools that fail as planned."""

    def __init__(self, real: Harness, injection: Injection) -> None:
        self._real = real
        self._injection = injection

    def mounts(self) -> dict[str, Path]:
        """Return the agent's files, and the program that starts it."""
        return {**self._real.mounts(), INSIDE: PROGRAM}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run the agent; with failing tools if any fault is planned for this attempt."""
        rollout_id, attempt = parse_attempt(sandbox.spec.known_as)
        faults = self._injection.plan.foresee("tool", rollout_id, attempt)
        if faults:
            start = next(each for each in self._real.mounts() if Path(each).stem == "__main__")
            sandbox = _FaultyToolsSandbox(sandbox, start, faults, self._injection)
        return await self._real.run(sandbox, context)


class _FaultyToolsSandbox(ForwardingSandbox):
    """A sandbox that starts the agent with failing tools."""

    def __init__(
        self, real: Sandbox, start: str, faults: dict[int, Fault], injection: Injection
    ) -> None:
        """``start``: the agent's program, as its command names it."""
        super().__init__(real)
        self._start = start
        self._faults = faults
        self._injection = injection

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        """Run a command; the agent's own start goes through ``tools_inside``."""
        if self._start in argv:
            at = argv.index(self._start)
            plan = {k: [f.what, f.seconds, f.random_bits] for k, f in self._faults.items()}
            argv = [*argv[:at], INSIDE, json.dumps(plan), *argv[at:]]
        result = await self.real.run(argv, **options)
        for line in result.stderr.decode(errors="replace").splitlines():
            k = line.removeprefix(MARK)
            if k != line and k.isdigit() and int(k) in self._faults:
                await self._injection.record(self._faults[int(k)])
        return result
