"""Sandboxes for work of our own: grading, and setup commands of a repository."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxError, SandboxSpec


@contextlib.asynccontextmanager
async def open_sandbox(backend: SandboxBackend, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """Yield a sandbox and close it; raises what ``backend.create`` raises.

    A sandbox that cannot be removed stays in the ledger, and the work done in it stands.
    """
    sandbox = await backend.create(spec)
    try:
        yield sandbox
    finally:
        with contextlib.suppress(SandboxError, OSError):
            await sandbox.close()
