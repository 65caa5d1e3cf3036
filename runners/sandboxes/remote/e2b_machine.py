"""An E2B sandbox as a machine: scripts through its process service, files through its file one."""

from __future__ import annotations

import time
from pathlib import Path

from e2b import AsyncSandbox

from runners.sandboxes.remote.e2b_calls import Calls, Gone

ANSWER_S = 60.0
"""A call of the control plane, with what the SDK waits between its tries: a longer Retry-After is
not waited for.
"""
CALL_S = ANSWER_S + 5.0
"""Ours for the same, beyond the SDK's own."""
TRANSFER_S = 300.0
"""A file on its way."""
MARGIN_S = 60
"""The lifetime is renewed when a call could end so close to its end."""
ROOT = "root"


class E2bMachine:
    """One sandbox of E2B's; its lifetime is renewed as long as it is used."""

    def __init__(self, sandbox: AsyncSandbox, calls: Calls, lifetime_s: int) -> None:
        self._sandbox = sandbox
        self._calls = calls
        self._lifetime_s = lifetime_s
        self._ends_at = time.monotonic() + lifetime_s

    @property
    def id(self) -> str:
        """E2B's name for it."""
        return self._sandbox.sandbox_id

    async def sh(self, script: str, *, deadline_s: float) -> bytes:
        """Run a script as root; see the contract."""
        await self._renew(deadline_s)

        async def call() -> bytes:
            # A stream of its own per try; what it started goes on without it.
            done = await self._sandbox.commands.run(script, user=ROOT, timeout=deadline_s)
            return done.stdout.encode()

        return await self._calls.make("run a script", call, deadline_s=deadline_s)

    async def put(self, path: str, content: bytes | Path) -> None:
        """Write a file as root; see the contract."""
        await self._renew(TRANSFER_S)

        async def call() -> None:
            if isinstance(content, bytes):
                await self._sandbox.files.write(path, content, user=ROOT)
                return
            with content.open("rb") as file:
                await self._sandbox.files.write(path, file, user=ROOT)

        await self._calls.make(f"write {path}", call, deadline_s=TRANSFER_S)

    async def get(self, path: str, target: Path) -> None:
        """Stream a file to the host; see the contract."""
        await self._renew(TRANSFER_S)

        async def call() -> None:
            stream = await self._sandbox.files.read(path, format="stream", user=ROOT)
            async with stream:
                with target.open("wb") as file:
                    async for chunk in stream:
                        file.write(chunk)

        await self._calls.make(f"read {path}", call, deadline_s=TRANSFER_S)

    async def end(self) -> None:
        """Kill it; see the contract."""
        try:
            await self._calls.make(
                "end a sandbox", self._sandbox.kill, deadline_s=CALL_S, retried=True
            )
        except Gone:
            return

    async def _renew(self, needed_s: float) -> None:
        """Make sure that it lives for so long from now."""
        if time.monotonic() + needed_s + MARGIN_S < self._ends_at:
            return

        async def call() -> None:
            await self._sandbox.set_timeout(self._lifetime_s)

        await self._calls.make("renew a sandbox", call, deadline_s=CALL_S, retried=True)
        self._ends_at = time.monotonic() + self._lifetime_s
