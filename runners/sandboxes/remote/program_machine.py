"""A machine that is reached by a program on this machine, such as ``docker`` or ``apptainer``.

Invariant: files are passed to the program as its input or output, so their content is never in this
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from runners.sandboxes.contract import SandboxError
from runners.sandboxes.remote.machine import BusyError

CALL_S = 60.0
COPY_S = 300.0


class ProgramMachine(ABC):
    """A ``Machine`` but for the program's command lines, and its end."""

    env: Mapping[str, str] | None = None
    """Environment of the program; None: that of this process."""
    cwd: Path | None = None
    """Directory in which the program runs; None: that of this process."""

    @abstractmethod
    def exec_argv(self, script: str, *, stdin: bool) -> list[str]:
        """Return the command that runs a script there as root, with input if ``stdin``."""

    @abstractmethod
    async def runs(self) -> bool:
        """Return whether the machine runs; raises SandboxError."""

    async def run_script(self, script: str, *, deadline_s: float) -> bytes:
        """Run a script as root; see the contract."""
        argv = self.exec_argv(script, stdin=False)
        try:
            return await run_program(argv, deadline_s=deadline_s, env=self.env, cwd=self.cwd)
        except SandboxError as error:
            if await self.runs():
                raise BusyError(str(error)) from error
            raise

    async def write_file(self, path: str, content: bytes | Path) -> None:
        """Write a file as root; see the contract."""
        script = f"mkdir -p {shlex.quote(path.rpartition('/')[0])} && cat > {shlex.quote(path)}"
        argv = self.exec_argv(script, stdin=True)
        if isinstance(content, bytes):
            await run_program(argv, stdin=content, deadline_s=COPY_S, env=self.env, cwd=self.cwd)
            return
        with content.open("rb") as file:
            await run_program(argv, stdin=file, deadline_s=COPY_S, env=self.env, cwd=self.cwd)

    async def read_file(self, path: str, target: Path) -> None:
        """Stream a file to the host; see the contract."""
        argv = self.exec_argv(f"cat {shlex.quote(path)}", stdin=False)
        with target.open("wb") as file:
            await run_program(argv, stdout=file, deadline_s=COPY_S, env=self.env, cwd=self.cwd)


async def run_program(
    argv: list[str],
    *,
    deadline_s: float,
    stdin: bytes | IO[bytes] = b"",
    stdout: IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Run a command line and return its output; raises SandboxError.

    A file as ``stdin`` or ``stdout`` is passed to the program, so its content is not read here.
    """
    pipe = asyncio.subprocess.PIPE
    data = stdin if isinstance(stdin, bytes) else None
    what = " ".join(argv[:2])
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe if isinstance(stdin, bytes) else stdin,
            stdout=stdout or pipe,
            stderr=pipe,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"cannot run {argv[0]}: {error.strerror}; install {argv[0]}") from error
    try:
        async with asyncio.timeout(deadline_s):
            out, err = await process.communicate(data)
    except TimeoutError as error:
        raise SandboxError(f"{what} took longer than {deadline_s:g} s") from error
    finally:
        if process.returncode is None:
            # Its children too: they hold the pipes, and one in a sandbox may wait there for long.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Shielded: a cancelled caller must not leave a zombie.
            await asyncio.shield(process.wait())
    if process.returncode:
        printed = err.decode(errors="replace").strip()[-500:] or "nothing"
        raise SandboxError(f"{what} ended with {process.returncode} and printed: {printed}")
    return out or b""
