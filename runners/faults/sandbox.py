"""Sandboxes that do not start, stall, answer rubbish, or are lost with everything in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from runners.faults.inject import strike
from runners.faults.injection import Injection
from runners.faults.plan import Fault, attempt_of
from runners.faults.tools_inside import GARBAGE
from runners.sandboxes.contract import (
    CommandResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)
from runners.sandboxes.wrappers import ForwardingBackend, ForwardingSandbox

LOOK_S = 0.05
"""Between two looks at how many turns a session has taken."""


def sandbox_error(fault: Fault) -> SandboxError:
    """Return what the sandboxes' boundary raises."""
    full = "the workspace does not fit: no space left on device; "
    text = f"{full if fault.what == 'disk_full' else ''}{fault}"
    return SandboxError(text, pushed_back=fault.status in (429, 503))


class FaultyBackend(ForwardingBackend):
    """Makes faulty sandboxes; ``turns`` says how many turns a session has taken."""

    def __init__(
        self, real: SandboxBackend, injection: Injection, turns: Callable[[str], Awaitable[int]]
    ) -> None:
        super().__init__(real)
        self._injection = injection
        self._turns = turns

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make one; of the grader's, only what ``grade`` armed is at fault."""
        grading = spec.network == "none"
        if not grading:
            await strike(self._injection.draw("sandbox_boot", spec.name), sandbox_error)
        real = await self.real.create(spec)
        armed = self._injection.armed.pop(spec.name, None)
        return FaultySandbox(real, self._injection, self._turns, armed=armed, grading=grading)


class FaultySandbox(ForwardingSandbox):
    """Fails as planned."""

    def __init__(
        self,
        real: Sandbox,
        injection: Injection,
        turns: Callable[[str], Awaitable[int]],
        *,
        armed: Fault | None,
        grading: bool,
    ) -> None:
        super().__init__(real)
        self._injection = injection
        self._turns = turns
        self._armed = armed
        self._grading = grading
        self._lost: Fault | None = None

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Run a command, unless the sandbox is lost, or until it is."""
        if self._lost is not None:
            raise SandboxError(f"sandbox {self.spec.name} is lost: {self._lost}")
        fault = self._fault()
        await strike(fault, sandbox_error)
        death = self._death(fault)
        running = self.real.run(
            argv, deadline_s=deadline_s, env=env, stdin=stdin, output_limit=output_limit
        )
        result = await (running if death is None else self._until(*death, running))
        if fault is not None and fault.what == "garbage":
            return replace(result, stdout=GARBAGE, stderr=GARBAGE, exit_code=0, timed_out=False)
        return result

    @asynccontextmanager
    async def on_host(self, *, leave_out: Collection[str] = ()) -> AsyncIterator[Path]:
        """Yield the workspace, which is where a patch is taken from."""
        if self._lost is not None:
            raise SandboxError(f"sandbox {self.spec.name} is lost: {self._lost}")
        if not self._grading:
            await strike(self._injection.draw("patch", self.spec.name), sandbox_error)
        async with self.real.on_host(leave_out=leave_out) as workspace:
            yield workspace

    async def close(self) -> None:
        """Remove the real sandbox; a failure comes after that, so that nothing is left."""
        await self.real.close()
        if not self._grading:
            await strike(self._injection.draw("teardown", self.spec.name), sandbox_error)

    def _fault(self) -> Fault | None:
        if not self._grading:
            return self._injection.draw("exec", self.spec.name)
        fault, self._armed = self._armed, None
        if fault is not None:
            self._injection.keep(fault)
        return fault

    def _death(self, fault: Fault | None) -> tuple[Fault, Awaitable[None]] | None:
        """Return why and when the sandbox dies during this command, if it does."""
        if fault is not None and fault.what == "death":
            return fault, asyncio.sleep(fault.seconds)
        if self._grading:
            return None
        rollout_id, attempt = attempt_of(self.spec.name)
        deaths = self._injection.plan.foresee("turn", rollout_id, attempt, what="death")
        if not deaths:
            return None
        first = deaths[min(deaths)]
        return first, self._taken(first)

    async def _taken(self, fault: Fault) -> None:
        """Return a little after the turn of a fault is durable."""
        while await self._turns(self.spec.name) < fault.k:
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(fault.seconds)

    async def _until(
        self, fault: Fault, dying: Awaitable[None], running: Awaitable[CommandResult]
    ) -> CommandResult:
        """Run a command in a sandbox that is dying: whatever comes first."""
        work, death = asyncio.ensure_future(running), asyncio.ensure_future(dying)
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                death.result()
                self._lost = fault
                if fault.where == "turn":  # the others were kept when they were drawn
                    self._injection.keep(fault)
                await self.real.close()
        finally:
            for task in (work, death):
                task.cancel()
            await asyncio.wait({work, death})
        if self._lost is not None:
            raise SandboxError(f"sandbox {self.spec.name} is lost: {fault}")
        return work.result()
