"""The suite for sandbox backends: everything that the contract promises, on the backend itself."""

from __future__ import annotations

from agentrl.testing.sandbox_checks import SandboxCheckTests
from agentrl.testing.sandbox_commands import SandboxCommandTests
from agentrl.testing.sandbox_files import SandboxFileTests


class SandboxConformance(SandboxCommandTests, SandboxFileTests, SandboxCheckTests):
    """Tests of a ``SandboxBackend``.

    A subclass overrides ``open_backend`` and says with ``isolated`` and ``remote`` what is
    promised. Processes are looked for on this machine, so a provider that runs them elsewhere needs
    a stand-in that runs them here.
    """
