"""Start, watch and end the service processes of a run (engine, gateway).

The protocol: the parent writes one JSON line of settings to the child's stdin and keeps that pipe
open; the child writes one JSON line to stdout when it is ready; end of file on its stdin means that
the parent has died, and the child exits. Stderr goes to its log file.

Invariant: no service outlives its parent for long. Its stdin is the parent-death pipe: the kernel
closes it whatever kills the parent, ``kill -9`` included. PR_SET_PDEATHSIG would not do: it fires
when the thread that spawned the child ends, and the child's own children do not inherit it. A
service that ignores the pipe is found by its tag (``process_tags``) when the next driver starts.
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
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import AgentrlError, ExitCode
from runners.system.processes.process_tags import SERVICE_TAG

if TYPE_CHECKING:  # a service, which imports this module, needs no store
    from runners.system.processes.ledger import Ledger

READY_LINE_BYTES = 1 << 20
LOG_TAIL_BYTES = 16_384
LOG_TAIL_LINES = 3
FULL_BYTES = 1 << 16
"""Less free space explains why a child that failed could not say so in its log."""
_EXCEPTION_LINE = re.compile(r"^[\w.]*(Error|Exception)\b.*\S", re.MULTILINE)
"""The last line of a traceback; a server that shuts down prints more lines below it."""
PACKAGES = str(Path(__file__).parents[3])
"""The directory that holds our top-level packages."""


def child_environment() -> dict[str, str]:
    """Return a child's environment, in which it finds our packages.

    The child runs with ``-P``, so the current directory is not searched: a user's ``rich.py`` there
    would replace the library.
    """
    if PACKAGES in site.getsitepackages():
        return dict(os.environ)
    found = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


class ServiceError(AgentrlError):
    """A service did not start, or ended while it was needed."""

    exit_code = ExitCode.SERVICE_GONE


# --- the child's side ----------------------------------------------------------------------------


def receive_settings() -> dict[str, Any]:
    """Return the settings that the parent sends, one JSON line on stdin; raises ServiceError.

    Nothing after that line is read: the pipe stays open for ``wait_for_parent_exit``.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # sys.stdin would buffer what follows the line
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
    """Return when stdin, the parent-death pipe, reaches its end: the parent closed it or died."""
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()

    def on_readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)  # a pipe at its end stays readable: the loop would spin
            exited.set()

    loop.add_reader(0, on_readable)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(0)


# --- the parent's side ---------------------------------------------------------------------------


class Service:
    """A running child service. Owned by whoever started it; stopped exactly once."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        log: Path,
        cleanup: ExitStack,
        log_start: int,
    ) -> None:
        """``log_start``: bytes in the log before the child: of earlier ones of its name."""
        self.name = name
        self.info: dict[str, Any] = {}
        """The JSON object that the child announced."""
        self.log = log
        self._log_start = log_start
        self._process = process
        self._cleanup = cleanup
        self._stopping = False
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
        descriptors: Sequence[int] = (),
    ) -> Service:
        """Start ``python -m module`` and wait until it announces itself.

        ``deadline_s`` is the time from start to ready; with ``ledger`` the service is registered
        while it lives; ``descriptors`` are inherited. Raises ServiceError with the end of its log.
        """
        try:
            service = await cls._spawn(name, module, log, ledger, descriptors)
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
    async def _spawn(
        cls,
        name: str,
        module: str,
        log: Path,
        ledger: Ledger | None,
        descriptors: Sequence[int],
    ) -> Service:
        tag = f"{name}-{secrets.token_hex(4)}"
        # A service of a service is found by the tag of the outer one, which is in the ledger.
        found_by = tag if ledger is not None else os.environ.get(SERVICE_TAG, tag)
        scratch = Path(tempfile.gettempdir()) / f"agentrl-{tag}"
        log.parent.mkdir(parents=True, exist_ok=True)
        log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as sink, ExitStack() as cleanup:
            if ledger is not None:
                ledger.register("process", tag, scratch=str(scratch))
                cleanup.callback(ledger.unregister, "process", tag)
            cleanup.callback(shutil.rmtree, scratch, ignore_errors=True)
            scratch.mkdir(mode=0o700)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", module,
                env={**child_environment(), SERVICE_TAG: found_by, "TMPDIR": str(scratch)},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=sink,
                limit=READY_LINE_BYTES,
                pass_fds=descriptors,
                start_new_session=True,  # a ctrl-C at the terminal is the driver's to handle
            )  # fmt: skip
            service = cls(name, process, log, cleanup.pop_all(), log_start)
        if ledger is not None:
            ledger.add_facts("process", tag, pid=process.pid)
        return service

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The child's exit code, negative if a signal ended it; None while it runs."""
        return self._process.returncode

    def watch(self, on_exit: Callable[[ServiceError], None]) -> None:
        """Call ``on_exit`` once if the child ends without ``stop`` having been called."""

        async def wait() -> None:
            code = await self._process.wait()
            if not self._stopping:
                on_exit(
                    ServiceError(f"{self.name} ended unexpectedly (exit {code}): {self.log_tail()}")
                )

        self._watch = asyncio.create_task(wait(), name=f"watch-{self.name}")

    def log_tail(self) -> str:
        """Return the last lines of the child's log for an error message, after the last exception.

        That line may stand far above the end, but it says what went wrong.
        """
        try:
            with self.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, file.tell() - LOG_TAIL_BYTES))
                text = file.read().decode("utf-8", "replace").strip()
        except OSError as error:
            return f"(log {self.log} unreadable: {error})"
        last = [line for line in text.splitlines()[-LOG_TAIL_LINES:] if line.strip()]
        raised = [found.group() for found in _EXCEPTION_LINE.finditer(text)][-1:]
        lines = [*(line for line in raised if line not in last), *last]
        if lines:
            return " | ".join(lines)
        full = shutil.disk_usage(self.log.parent).free < FULL_BYTES
        return f"(nothing in {self.log}{': the disk is full' if full else ''})"

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the child and return when it is gone: close its stdin, then SIGTERM, then SIGKILL.

        Each step gets ``grace_s``. If the caller is cancelled meanwhile, SIGKILL follows at once:
        a shutdown is cancelled when there is no more time, and the child must not be left behind.
        """
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self._end_gently(grace_s)
        except asyncio.CancelledError:
            self.kill()
            await self._process.wait()
            self._cleanup.close()
            raise
        self._cleanup.close()

    async def _end_gently(self, grace_s: float) -> None:
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        for stronger in (self._process.terminate, self.kill):
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
                return
            except TimeoutError:
                stronger()
        await self._process.wait()

    def kill(self) -> None:
        """Kill the child and its children: it leads a process group (``start_new_session``)."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class ServiceStarter:
    """Starts the services of one run."""

    run_dir: Path
    exits: AsyncExitStack
    """Stops them when it unwinds."""
    on_exit: Callable[[ServiceError], None]
    """Called when a service exits that nobody has stopped."""
    ledger: Ledger | None = None
    """The services are registered in it while they live."""

    def log(self, name: str) -> Path:
        """Return the log of a service."""
        return self.run_dir / "logs" / f"{name}.log"

    async def start(
        self,
        name: str,
        module: str,
        settings: dict[str, Any],
        *,
        deadline_s: float,
        descriptors: Sequence[int] = (),
    ) -> Service:
        """Start a service as ``Service.start`` does, and watch it."""
        service = await Service.start(
            name,
            module,
            settings,
            log=self.log(name),
            deadline_s=deadline_s,
            ledger=self.ledger,
            descriptors=descriptors,
        )
        self.exits.push_async_callback(service.stop)
        service.watch(self.on_exit)
        return service
