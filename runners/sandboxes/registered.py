"""A backend whose sandboxes stand in the run's ledger for as long as they exist."""

from __future__ import annotations

from runners.processes.recorder import ResourceRegistry
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.wrappers import ForwardingBackend, ForwardingSandbox


class RegisteredBackend(ForwardingBackend):
    """Makes the sandboxes of another backend, each entered before it exists."""

    def __init__(self, real: SandboxBackend, register: ResourceRegistry) -> None:
        super().__init__(real)
        self._register = register

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make one; raises SandboxError, and then there is none."""
        await self._register.enter("sandbox", spec.name)
        try:
            sandbox = await self.real.create(spec)
        except BaseException:
            await self._register.leave("sandbox", spec.name)
            raise
        return _Registered(sandbox, self._register)


class _Registered(ForwardingSandbox):
    """A sandbox that leaves the ledger when it is gone; one that cannot be closed stays in it."""

    def __init__(self, real: Sandbox, register: ResourceRegistry) -> None:
        super().__init__(real)
        self._register = register

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace."""
        await self.real.close()
        await self._register.leave("sandbox", self.spec.name)
