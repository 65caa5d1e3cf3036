"""A sandbox that runs nothing: what a harness asks of it is kept."""

from __future__ import annotations

from typing import cast

from runners.harnesses.contract import Harness, HarnessContext
from runners.sandboxes.contract import CommandResult, Sandbox


class Listener:
    """Of a sandbox, what a harness uses: it keeps what it was asked to run."""

    gateway_url = "http://127.0.0.1:8080"
    workdir = "/workspace"

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.stdin = b""

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Keep the arguments."""
        self.argv, self.env, self.stdin = argv, env or {}, stdin
        return CommandResult(0, b"", b"", 1.0)


async def started(harness: Harness, sandbox: Listener) -> None:
    """Start a harness with a secret key and a task, neither of which may be in its command line."""
    await harness.run(cast("Sandbox", sandbox), HarnessContext("TASK é", "SECRET", "policy", 5))
    assert not any("SECRET" in word or "TASK" in word for word in sandbox.argv)
    assert sandbox.stdin == "TASK é".encode()
