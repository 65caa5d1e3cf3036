"""Service processes of a run (engine, gateway): how one is started, watched and ended.

The protocol is three lines long. The parent writes one JSON line of settings to the child's stdin
and keeps that pipe open; the child writes one JSON line to stdout when it is ready; end of file on
the child's stdin means that the parent is gone (also after ``kill -9``), and the child exits at
once. Everything else the child prints goes to its log file. Its temporary directory is its own and
goes with it; one that outlives its parent is found by its mark.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import site
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import AgentrlError, ExitCode
from runners.processes.process_tags import SERVICE_TAG

if TYPE_CHECKING:  # a service, which imports this module, needs no store
    from runners.processes.ledger import Ledger

READY_LINE_BYTES = 1 << 20
LOG_TAIL_BYTES = 16_384
LOG_TAIL_LINES = 3
_RAISED = re.compile(r"^[\w.]*(Error|Exception)\b.*\S", re.MULTILINE)
"""The last line of a traceback; what a server prints while it ends stands below it."""
PACKAGES = str(Path(__file__).parents[2])


def _environment() -> dict[str, str]:
    """Return a child's environment: it finds our packages, and (with ``-P``) nothing in the current
    directory, where a user's ``rich.py`` would stand for the library.
    """
    if PACKAGES in site.getsitepackages():
        return dict(os.environ)
    found = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


class ServiceError(AgentrlError):
    """A service did not start, or ended while it was needed."""

    exit_code = ExitCode.SERVICE_GONE


# The child's side.


def receive_settings() -> dict[str, Any]:
    """Read the settings the parent sends: one JSON line from stdin, leaving the rest of the pipe
    unread.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # unbuffered: the pipe stays a life-line for `wait_for_parent_exit`
        if not byte:
            raise ServiceError(
                "no settings on stdin: this module is started by agentrl, not by hand"
            )
        line += byte
    settings = json.loads(line)
    if not isinstance(settings, dict):
        raise ServiceError("settings on stdin must be one JSON object")
    return settings


def announce(info: dict[str, Any]) -> None:
    """Tell the parent that the service is ready and where it is: one JSON line on stdout."""
    sys.stdout.write(json.dumps(info) + "\n")
    sys.stdout.flush()


async def wait_for_parent_exit() -> None:
    """Return when stdin reaches its end: the parent closed it or died."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            gone.set()

    loop.add_reader(0, readable)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(0)


# The parent's side.


class Service:
    """A running child service. Owned by the campaign; ended exactly once."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, log: Path, after: ExitStack
    ) -> None:
        self.name = name
        self.info: dict[str, Any] = {}
        """What the child announced."""
        self.log = log
        self._process = process
        self._after = after
        self._ending = False
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        settings: dict[str, Any],
        *,
        log: Path,
        deadline_s: float,
        ledger: Ledger | None = None,
    ) -> Service:
        """Start ``python -m module`` and wait until it is ready; raises ServiceError with the end
        of its log.
        """
        try:
            service = await cls._spawn(name, module, log, ledger)
        except OSError as error:
            raise ServiceError(f"{name} cannot be started: {error}") from error
        process = service._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            await process.stdin.drain()
            async with asyncio.timeout(deadline_s):
                line = await process.stdout.readline()
            if not line:
                await process.wait()
                raise ServiceError(
                    f"{name} did not start (exit {process.returncode}): {service.log_tail()}"
                )
            service.info = json.loads(line)
        except TimeoutError:
            await service.stop()
            raise ServiceError(
                f"{name} was not ready within {deadline_s:.0f} s; see {log}: {service.log_tail()}"
            ) from None
        except (ConnectionError, json.JSONDecodeError) as error:
            await service.stop()
            raise ServiceError(f"{name} did not start ({error}): {service.log_tail()}") from error
        except BaseException:
            await service.stop()
            raise
        return service

    @classmethod
    async def _spawn(cls, name: str, module: str, log: Path, ledger: Ledger | None) -> Service:
        mark = f"{name}-{secrets.token_hex(4)}"
        scratch = Path(tempfile.gettempdir()) / f"agentrl-{mark}"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink, ExitStack() as after:
            if ledger is not None:
                ledger.register("process", mark, scratch=str(scratch))
                after.callback(ledger.unregister, "process", mark)
            after.callback(shutil.rmtree, scratch, ignore_errors=True)
            scratch.mkdir(mode=0o700)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", module,
                env={**_environment(), SERVICE_TAG: mark, "TMPDIR": str(scratch)},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=sink,
                limit=READY_LINE_BYTES,
                start_new_session=True,  # a ctrl-C at the terminal is the driver's to handle
            )  # fmt: skip
            service = cls(name, process, log, after.pop_all())
        if ledger is not None:
            ledger.note("process", mark, pid=process.pid)
        return service

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def watch(self, on_exit: Callable[[ServiceError], None]) -> None:
        """Call ``on_exit`` once if the child ends although nobody asked it to."""

        async def wait() -> None:
            code = await self._process.wait()
            if not self._ending:
                on_exit(
                    ServiceError(f"{self.name} ended unexpectedly (exit {code}): {self.log_tail()}")
                )

        self._watch = asyncio.create_task(wait(), name=f"watch-{self.name}")

    def log_tail(self) -> str:
        """Return the last lines of the child's log, for an error message, and before them what was
        raised last.
        """
        try:
            with self.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
                text = file.read().decode("utf-8", "replace").strip()
        except OSError as error:
            return f"(log {self.log} unreadable: {error})"
        last = [line for line in text.splitlines()[-LOG_TAIL_LINES:] if line.strip()]
        raised = [found.group() for found in _RAISED.finditer(text)][-1:]
        lines = [*(line for line in raised if line not in last), *last]
        return " | ".join(lines) or f"(nothing in {self.log})"

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the child: its life-line, then SIGTERM, then SIGKILL; returns when it is gone. Who is
        cancelled here is in a hurry: SIGKILL then, at once.
        """
        self._ending = True
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self._end(grace_s)
        except asyncio.CancelledError:
            self._kill()
            await self._process.wait()
            self._after.close()
            raise
        self._after.close()

    async def _end(self, grace_s: float) -> None:
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        for end in (self._process.terminate, self._kill):
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
                return
            except TimeoutError:
                end()
        await self._process.wait()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
