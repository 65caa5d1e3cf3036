"""What every sandbox backend promises: a private workspace, deadlines, complete removal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from conf.errors import AgentrlError, ExitCode


class SandboxError(AgentrlError):
    """The sandbox itself failed (not the command in it). ``pushed_back``: whoever makes sandboxes
    has too much to do, and said so.
    """

    exit_code = ExitCode.SERVICE_GONE

    def __init__(self, message: str, *, pushed_back: bool = False) -> None:
        self.pushed_back = pushed_back
        super().__init__(message)


class OversizedError(SandboxError):
    """A workspace is larger than what is taken back of it: the doing of who worked in it."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox is made from."""

    name: str
    """Unique in the run: rollout attempt or grading id; safe as a file name."""
    source: Path | None
    """Directory on the host that becomes the workspace (copied; the source is never written); None:
    what the image has at ``workdir``.
    """
    network: Literal["gateway", "none"]
    """"gateway": one loopback port that leads to the gateway; "none": nothing at all."""
    gateway_url: str | None = None
    """The gateway's URL, for backends that give no socket into the sandbox."""
    gateway_control: Path | None = None
    """The gateway's control socket; needed with network="gateway"."""
    session_key: str | None = None
    """The session's ``api_key``, which the gateway's control socket asks for; never in an argv."""
    mounts: dict[str, Path] = field(default_factory=dict)
    """Read-only host files or directories by their path inside (harness, test runner)."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every command in it; those of a command win."""
    change: Callable[[Path], None] | None = None
    """Called with a copy of ``source`` before anything runs in it, in a thread; what it raises,
    ``create`` raises.
    """
    image: str | None = None
    """What the machine is made from, for a backend that ``has_images``; None: as configured."""
    workdir: str | None = None
    """Where the workspace is in the image; None: the backend's own place. What git tracks there
    gives way to ``source``; what the image has besides, built extensions and the like, stays.
    """


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command in a sandbox ended."""

    exit_code: int
    """Negative: killed by that signal; 124 when ``timed_out``. A backend that goes through a shell
    takes ``exit 137`` for SIGKILL.
    """
    stdout: bytes
    """Captured output, cut in the middle beyond ``output_limit``."""
    stderr: bytes
    duration_s: float
    timed_out: bool = False


class Sandbox(Protocol):
    """One private workspace. Not shared between rollouts; closed exactly once."""

    spec: SandboxSpec
    workdir: str
    """The workspace as commands inside see it."""
    gateway_url: str | None
    """Base URL of the gateway as commands inside see it; None without network."""

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Run ``argv`` in ``workdir``; of two at once, one may have to wait.

        At the deadline everything it started is killed and ``timed_out`` is set. Cancellation kills
        everything too. Raises SandboxError if the sandbox could not run the command at all.
        """
        ...

    def on_host(self, *, leave_out: Collection[str] = ()) -> AbstractAsyncContextManager[Path]:
        """Yield the workspace as a directory of the host, to be looked at while nothing runs.

        It is the workspace or a copy: what is written there may be lost. Entries of its top level
        that are in ``leave_out`` may be missing. Raises SandboxError, and OversizedError of a
        workspace that is too large to be copied.
        """
        ...

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace; safe to call twice."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes; one per run."""

    has_images: bool
    """It makes a sandbox of the image that its spec names; others refuse one."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make one; raises SandboxError, and what ``spec.change`` raises."""
        ...

    def guarantees(self) -> dict[str, str]:
        """Return what holds here, for the user: promise → how it is kept, or why it is not."""
        ...

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """End the sandboxes of a dead driver, name → what its ledger says of it; those that are
        gone are fine. Raises SandboxError.
        """
        ...

    async def close(self) -> None:
        """Remove every sandbox that is left."""
        ...
