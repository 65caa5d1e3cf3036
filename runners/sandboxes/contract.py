"""The contract of sandbox backends: a private workspace, deadlines, complete removal.

Invariant: when ``Sandbox.run`` returns or raises, nothing that the command started runs any more;
when ``Sandbox.close`` returns, nothing of the sandbox is left. A backend that cannot promise a part
of this says so in ``guarantees``.
"""

from __future__ import annotations

import errno
import importlib.util
import py_compile
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from conf.errors import AgentrlError, ExitCode


class SandboxError(AgentrlError):
    """The sandbox itself failed, not the command in it."""

    exit_code = ExitCode.SERVICE_GONE

    def __init__(self, message: str, *, pushed_back: bool = False) -> None:
        """``pushed_back``: the provider refused because it is overloaded (HTTP 429, 503)."""
        self.pushed_back = pushed_back
        super().__init__(message)


def describe_os_error(what: str, path: Path, error: OSError) -> str:
    """Return the message of an operation on ``path`` that failed, and the fix for a full disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{what}: the disk of {path} is full; free some space there"
    return f"{what}: {error}"


class OversizedError(SandboxError):
    """A workspace is larger than what is copied back, or fills the disk: its agent's doing."""


class KilledError(SandboxError):
    """Everything in a sandbox was ended, and not by us: by a command of it, or for want of memory,
    of which a sandbox's processes are the first to lose theirs.
    """


class StarvedError(SandboxError):
    """A command was late because the machine had no processor for it; see ``CommandResult``."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The workspace, network, mounts and image of a sandbox to be made."""

    name: str
    """Unique in the run: rollout attempt or grading id; safe as a file name."""
    source: Path | None
    """Directory on the host that is copied into the workspace and never written; None: the
    workspace is what the image has at ``workdir``.
    """
    network: Literal["gateway", "none"]
    """"gateway": one loopback port that leads to the gateway; "none": nothing at all."""
    gateway_url: str | None = None
    """The gateway's URL, for backends in which commands connect to it over a network."""
    gateway_control: Path | None = None
    """The gateway's control socket, for the local backend with network="gateway"."""
    session_key: str | None = None
    """The session's ``api_key``, which the control socket requires; never in an argv."""
    mounts: dict[str, Path] = field(default_factory=dict)
    """Read-only host files or directories by their path inside (agent program, test runner)."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every command; a command's own override them."""
    change: Callable[[Path], None] | None = None
    """Called in a thread with a copy of ``source`` before anything runs; ``create`` raises what it
    raises.
    """
    image: str | None = None
    """Image of the machine, for a backend that ``has_images``; None: as configured."""
    workdir: str | None = None
    """Path of the workspace inside; None: the backend's own. In an image, files that git tracks
    there are replaced by ``source``; others, such as built extensions, stay.
    """
    trees: Mapping[str, Path] = field(default_factory=dict)
    """Directories of the host that are copied to these paths inside, for commands to write."""
    egress_hosts: tuple[str, ...] | None = None
    """Names of hosts (``*.example.com``: subdomains) beyond which it must reach none, whatever the
    configuration allows; None: as configured.
    """
    removed: tuple[str, ...] = ()
    """Absolute paths of the image that are removed before anything runs."""
    denied_hosts: tuple[str, ...] = ()
    """Hosts, with their subdomains, that it must not reach whatever the configuration allows: there
    the task's fix can be had.
    """
    workspace_bytes: int = 2 << 30
    """Most that a workspace in this machine's memory may grow while a command runs."""
    purpose: str = ""
    """Attempt or grading that it is for, where its name says nothing: what runs inside can read the
    name, and not this. "": its name.
    """

    @property
    def known_as(self) -> str:
        """The attempt or grading that it is for, for people and for the fault plan."""
        return self.purpose or self.name


EGRESS = "egress"
"""Entry of a rollout's ``extra``: its agent's ``EgressAttempt``s, as JSON objects."""


@dataclass(frozen=True, slots=True)
class EgressAttempt:
    """A host that something in a sandbox tried to reach, besides the gateway."""

    host: str
    port: int
    allowed: bool
    count: int


TIMED_OUT = 124
"""Exit code of a command that was killed at its deadline, as of timeout(1)."""
BASE_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@sandbox",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@sandbox",
}
"""Variables of every command, whatever the backend. Without a name git refuses to commit; cached
bytecode in the workspace would appear in the agent's patch.
"""


def join_output(head: bytes, tail: bytes, left_out: int) -> bytes:
    """Return an output that was cut in the middle, with a note of the bytes left out there."""
    note = b"\n[%d bytes left out]\n" % left_out if left_out else b""
    return head + note + tail


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a command in a sandbox."""

    exit_code: int
    """Negative: killed by that signal; ``TIMED_OUT`` when ``timed_out``. A backend that starts
    commands through a shell cannot tell ``exit 137`` from SIGKILL, and reports the signal.
    """
    stdout: bytes
    """Captured output, cut in the middle beyond ``output_limit`` bytes."""
    stderr: bytes
    duration_s: float
    timed_out: bool = False
    cpu_s: float | None = None
    """CPU seconds of all its processes, of a command that was killed at its deadline; None where
    nobody measures them.
    """
    waited_s: float | None = None
    """Of such a command: seconds in which a thread of it was ready, for a processor or a disk, and
    none of them had one.
    """

    @property
    def starved(self) -> bool:
        """Return whether it was late for want of a processor.

        It was kept waiting for a good part of the time, and has used little: a loop uses its share,
        a sleep waits for nothing, and many processes that wait for each other use a lot.
        """
        if not self.timed_out or self.cpu_s is None or self.waited_s is None:
            return False
        return self.waited_s >= self.duration_s / 4 and self.cpu_s < self.duration_s / 2


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """A command that looks at what an agent left in its sandbox, after the agent has ended."""

    argv: list[str]
    files: Mapping[str, Path]
    """Files or directories of the host that are put at these paths inside, in place of whatever is
    there; nothing that the agent may start can change them.
    """
    output: str
    """Absolute path of a directory that is made anew, empty, for the command to write."""
    reads: tuple[str, ...]
    """Names of files in ``output`` that are read when the command has ended."""
    deadline_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """Name or number of its user, where the sandbox has users; None: root."""
    output_limit: int = 65536
    """Bytes kept of each stream; of each file, ``CHECK_FILE_LIMIT``."""


CHECK_FILE_LIMIT = 128 << 10


@dataclass(frozen=True, slots=True)
class CheckOutput:
    """A check command's result."""

    result: CommandResult
    files: Mapping[str, bytes]
    """Content of those of ``CheckCommand.reads`` that are regular files, cut at the limit."""


class Sandbox(Protocol):
    """One private workspace, never shared between rollouts."""

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
        """Run ``argv`` in ``workdir``; of two concurrent commands, one may have to wait.

        At the deadline everything that it started is killed and ``timed_out`` is set. Cancellation
        kills everything too. Raises SandboxError if the sandbox could not run the command at all,
        OversizedError if it was ended because it fills the disk or the memory, and KilledError if
        something else ended it.
        """
        ...

    def on_host(
        self, *, leave_out: Collection[str] = (), only: Collection[str] = ()
    ) -> AbstractAsyncContextManager[Path]:
        """Yield the workspace as a directory of the host, to be read while nothing runs.

        It is the workspace or a copy, so writes may be lost. Paths in ``leave_out``, with all below
        them, may be missing; so may all but the paths in ``only``, if there are any. Raises
        SandboxError, and OversizedError if the workspace is too large to be copied.
        """
        ...

    async def run_check(self, check: CheckCommand) -> CheckOutput:
        """Run a check in ``workdir`` while nothing else runs; ``run`` must not be called after it.

        Its environment has nothing from commands before it. Where the sandbox has users it has
        root's rights, so that it may install programs: then what it started may outlive it, until
        ``close``. Raises SandboxError and OversizedError; what the agent left may be the cause.
        """
        ...

    def egress_attempts(self) -> tuple[EgressAttempt, ...]:
        """Return what it tried to reach, as far as the backend sees it (``guarantees``)."""
        ...

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace; safe to call twice."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes; a run has one."""

    has_images: bool
    """It makes sandboxes from the image that a spec names; other backends refuse such a spec."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox; raises SandboxError, and what ``spec.change`` raises."""
        ...

    async def build_image(self, context: Path, tag: str, *, deadline_s: float) -> None:
        """Build an image from a directory with a Dockerfile, unless there is one of this tag.

        Raises SandboxError, also where images cannot be built.
        """
        ...

    def guarantees(self) -> dict[str, str]:
        """Return the promises for the user to read: promise → how it is kept, or why it is not."""
        ...

    async def reap(self, leaked: Mapping[str, Mapping[str, Any]]) -> None:
        """End the sandboxes of a dead driver, name → facts in the run's ledger.

        Those that are gone already are no error. Raises SandboxError.
        """
        ...

    async def close(self) -> None:
        """Remove every sandbox that is left."""
        ...


def compile_program(source: Path) -> Path:
    """Return a ``.pyc`` of a source file, or the source itself where none can be written.

    A sandbox cannot keep a compiled copy: its mounts are read-only and its workspace is new.
    Either can be given to ``python`` as a script, or imported under the name it is mounted at.
    """
    tag = importlib.util.cache_from_source(str(source))
    target = Path(tag).with_suffix(".inside.pyc")
    try:
        if not target.exists() or target.stat().st_mtime <= source.stat().st_mtime:
            # dfile: tracebacks inside name the file alone, not where agentrl is on the host.
            py_compile.compile(str(source), str(target), dfile=source.name, doraise=True)
    except OSError:
        return source
    return target


def find_source(program: Path) -> Path | None:
    """Return the source of a file that ``compile_program`` made, None of another file.

    A machine elsewhere may have another version of Python, which cannot read the compiled one.
    """
    if not program.name.endswith(".inside.pyc"):
        return None
    plain = program.with_name(program.name.removesuffix(".inside.pyc") + ".pyc")
    return Path(importlib.util.source_from_cache(str(plain)))
