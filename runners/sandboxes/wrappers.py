"""Wrap sandboxes: a base class that forwards, another event loop, the ledger's backend, a context.

A subclass of ``ForwardingSandbox`` overrides what it changes, and calls ``real`` there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from runners.sandboxes.contract import (
    CheckCommand,
    CheckOutput,
    CommandResult,
    EgressAttempt,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
    StarvedError,
)
from runners.system.concurrency import run_in
from runners.system.processes.ledger import ResourceRegistry


class ForwardingSandbox:
    """A ``Sandbox`` around a real one."""

    def __init__(self, real: Sandbox) -> None:
        self.real = real
        self.spec: SandboxSpec = real.spec
        self.workdir: str = real.workdir
        self.gateway_url: str | None = real.gateway_url

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        """Run a command in it; the options are those of the contract."""
        return await self.real.run(argv, **options)

    def on_host(
        self, *, leave_out: Collection[str] = (), only: Collection[str] = ()
    ) -> AbstractAsyncContextManager[Path]:
        """Yield the workspace as a directory of the host; see the contract."""
        return self.real.on_host(leave_out=leave_out, only=only)

    async def run_check(self, check: CheckCommand) -> CheckOutput:
        """Run a check after the agent; see the contract."""
        return await self.real.run_check(check)

    def egress_attempts(self) -> tuple[EgressAttempt, ...]:
        """Return what it tried to reach; see the contract."""
        return self.real.egress_attempts()

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace."""
        await self.real.close()


class RegisteredBackend:
    """Registers each sandbox of another backend in the run's ledger before it exists."""

    def __init__(self, real: SandboxBackend, registry: ResourceRegistry) -> None:
        self.real = real
        self.has_images: bool = real.has_images
        self._registry = registry

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox; see the contract."""
        await self._registry.register("sandbox", spec.name)
        try:
            sandbox = await self.real.create(spec)
        except BaseException:
            await self._registry.unregister("sandbox", spec.name)
            raise
        return _RegisteredSandbox(sandbox, self._registry)

    async def build_image(self, context: Path, tag: str, *, deadline_s: float) -> None:
        """Build an image; see the contract."""
        await self.real.build_image(context, tag, deadline_s=deadline_s)

    def guarantees(self) -> dict[str, str]:
        """Return the promises; see the contract."""
        return self.real.guarantees()

    async def reap(self, leaked: Mapping[str, Mapping[str, Any]]) -> None:
        """End the sandboxes of a dead driver."""
        await self.real.reap(leaked)

    async def close(self) -> None:
        """Remove every sandbox that is left."""
        await self.real.close()


class _RegisteredSandbox(ForwardingSandbox):
    """Unregisters itself when it is closed; one that cannot be closed stays registered."""

    def __init__(self, real: Sandbox, registry: ResourceRegistry) -> None:
        super().__init__(real)
        self._registry = registry

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace."""
        await self.real.close()
        await self._registry.unregister("sandbox", self.spec.name)


@asynccontextmanager
async def open_sandbox(backend: SandboxBackend, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """Yield a sandbox and close it; raises what ``backend.create`` raises.

    A sandbox that cannot be removed stays in the ledger, and the work done in it stands.
    """
    sandbox = await backend.create(spec)
    try:
        yield sandbox
    finally:
        with suppress(SandboxError, OSError):
            await sandbox.close()


class FairSandbox(ForwardingSandbox):
    """A ``Sandbox`` in which no command is late for want of a processor: it raises StarvedError."""

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        """Run a command in it; the options are those of the contract."""
        return self._check(await self.real.run(argv, **options))

    async def run_check(self, check: CheckCommand) -> CheckOutput:
        """Run a check after the agent; see the contract."""
        done = await self.real.run_check(check)
        self._check(done.result)
        return done

    def _check(self, result: CommandResult) -> CommandResult:
        if result.starved:
            raise StarvedError(
                f"in {result.duration_s:.0f} s a command had a processor for {result.cpu_s:.1f} s "
                f"and waited for one for {result.waited_s:.0f} s: the machine is overloaded"
            )
        return result


UNWIND_S = 10.0
"""To end a cancelled command."""


class SandboxElsewhere(ForwardingSandbox):
    """A ``Sandbox`` whose calls are carried to the loop in which this object was made."""

    def __init__(self, real: Sandbox) -> None:
        super().__init__(real)
        self._loop = asyncio.get_running_loop()

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        """Run a command in it; the options are those of the contract."""
        return await run_in(self._loop, lambda: self.real.run(argv, **options), unwind_s=UNWIND_S)

    @asynccontextmanager
    async def on_host(
        self, *, leave_out: Collection[str] = (), only: Collection[str] = ()
    ) -> AsyncIterator[Path]:
        """Yield the workspace as a directory of the host; see the contract."""
        entered: concurrent.futures.Future[Path] = concurrent.futures.Future()
        leave = asyncio.Event()

        async def hold() -> None:
            async with self.real.on_host(leave_out=leave_out, only=only) as path:
                entered.set_result(path)
                await leave.wait()

        holding: asyncio.Future[Any] = asyncio.ensure_future(
            run_in(self._loop, hold, unwind_s=UNWIND_S)
        )
        try:
            ready: asyncio.Future[Any] = asyncio.wrap_future(entered)
            await asyncio.wait({holding, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                yield ready.result()
        finally:
            self._loop.call_soon_threadsafe(leave.set)
            await holding

    async def run_check(self, check: CheckCommand) -> CheckOutput:
        """Run a check after the agent; see the contract."""
        return await run_in(self._loop, lambda: self.real.run_check(check), unwind_s=UNWIND_S)

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace."""
        await run_in(self._loop, self.real.close)
