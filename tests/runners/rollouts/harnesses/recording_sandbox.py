"""A sandbox that runs nothing and records the command that a harness starts."""

from __future__ import annotations

from typing import cast

from runners.rollouts.contract import Harness, HarnessContext
from runners.sandboxes.contract import CommandResult, Sandbox


class RecordingSandbox:
    """The part of a sandbox that a harness uses; records the arguments of ``run``."""

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
        """Record the arguments."""
        self.argv, self.env, self.stdin = argv, env or {}, stdin
        return CommandResult(0, b"", b"", 1.0)


async def check_no_secret_in_argv(harness: Harness, sandbox: RecordingSandbox) -> None:
    """Start a harness with a key and a task; check that neither is in its command line."""
    await harness.run(cast("Sandbox", sandbox), HarnessContext("TASK é", "SECRET", "policy", 5))
    assert not any("SECRET" in word or "TASK" in word for word in sandbox.argv)
    assert sandbox.stdin == "TASK é".encode()
