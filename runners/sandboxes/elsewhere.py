"""A sandbox for code in another event loop, such as that of plug-ins, where they may block."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from runners.sandboxes.contract import CheckCommand, CheckOutput, CommandResult, Sandbox
from runners.sandboxes.wrappers import ForwardingSandbox
from runners.system.concurrency import run_in

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
