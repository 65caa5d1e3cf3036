"""A backend whose sandboxes stand in the run's ledger for as long as they exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from runners.ledger import Ledger
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxBackend, SandboxSpec


class RegisteredBackend:
    """Makes the sandboxes of another backend, each entered before it exists."""

    def __init__(self, backend: SandboxBackend, ledger: Ledger) -> None:
        self._backend = backend
        self._ledger = ledger

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make one; raises SandboxError, and then there is none."""
        self._ledger.enter("sandbox", spec.name)
        try:
            sandbox = await self._backend.create(spec)
        except BaseException:
            self._ledger.leave("sandbox", spec.name)
            raise
        return _Registered(sandbox, self._ledger)

    def guarantees(self) -> dict[str, str]:
        """Return what holds here."""
        return self._backend.guarantees()

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """End the sandboxes of a dead driver."""
        await self._backend.reap(left)

    async def close(self) -> None:
        """Remove every sandbox that is left."""
        await self._backend.close()


class _Registered:
    """A sandbox that leaves the ledger when it is gone; one that cannot be closed stays in it."""

    def __init__(self, sandbox: Sandbox, ledger: Ledger) -> None:
        self.spec: SandboxSpec = sandbox.spec
        self.workdir: str = sandbox.workdir
        self.gateway_url: str | None = sandbox.gateway_url
        self._sandbox = sandbox
        self._ledger = ledger

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Run a command in it; see the contract."""
        return await self._sandbox.run(
            argv, deadline_s=deadline_s, env=env, stdin=stdin, output_limit=output_limit
        )

    def on_host(self, *, leave_out: Collection[str] = ()) -> AbstractAsyncContextManager[Path]:
        """Yield the workspace as a directory of the host; see the contract."""
        return self._sandbox.on_host(leave_out=leave_out)

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace."""
        await self._sandbox.close()
        self._ledger.leave("sandbox", self.spec.name)
