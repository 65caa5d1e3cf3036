"""Run one program against a gateway of its own, outside of any sandbox: with the user's rights.

Invariants: the program has the terminal, and its ctrl-C; what it has started ends with it; the
admin key is in no environment.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.schema import Config
from conf.sections.engine import FixedEngineConfig, SglangEngineConfig
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError
from runners.engines.server_check import no_answer
from runners.gateway.client import GatewayAdmin
from runners.gateway.program_environment import program_environment
from runners.services.gateway_alone import serve_alone
from runners.system.processes import kill_tagged

SESSION = "once"
"""Id of the one session, and of its rollout."""
PROGRAM_TAG = "AGENTRL_ATTACHED"
"""Environment variable of the program, by which what it started is found; the value is random."""


class AttachedProgram:
    """A program and its session at a gateway."""

    def __init__(self, command: Sequence[str], stdout: int | None) -> None:
        """``stdout``: descriptor for the program's output; None: ours."""
        self.interrupted = False
        """We were told to stop: the session ends without a result."""
        self._passed_on = False
        self._command = command
        self._stdout = stdout
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, gateway: dict[str, Any]) -> int:
        """Run it in a session of a gateway, end the session, return the exit code as a shell
        reports it. Raises OSError if it cannot be started, GatewayError.
        """
        admin = GatewayAdmin(gateway["url"], gateway["admin_key"])
        try:
            session_id, key = await admin.create_session(SESSION)
            code = await self._execute(program_environment(gateway["url"], key))
            if self.interrupted:
                await admin.delete(session_id)
            else:
                await admin.finish(session_id, segments=False)
        finally:
            await admin.close()
        return code

    def signal(self, number: int) -> None:
        """Handle a signal that we have received: pass it on, unless the program has it already; a
        second one that has to be passed on ends the program.
        """
        self.interrupted = True
        # The terminal sends ctrl-C to all in its foreground; a second one could end a program that
        # is cleaning up.
        if self._process is None or (number == signal.SIGINT and _is_in_foreground()):
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL if self._passed_on else number)
        self._passed_on = True

    async def _execute(self, environment: dict[str, str]) -> int:
        if self.interrupted:
            return 128 + signal.SIGINT
        tag = secrets.token_hex(16)
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env={**environment, PROGRAM_TAG: tag}, stdout=self._stdout
        )
        try:
            code = await self._process.wait()
        finally:
            # Also what it left in the background, and itself if its gateway has failed.
            await asyncio.shield(
                asyncio.to_thread(kill_tagged, PROGRAM_TAG, lambda value: value == tag)
            )
        return code if code >= 0 else 128 - code


async def run_attached(
    config: Config,
    run_dir: Path,
    weights: Path | None,
    tokenizer: Path | None,
    command: Sequence[str],
    *,
    stdout: int | None,
    report: Callable[[str], None],
) -> int:
    """Serve a gateway while a program runs, and return the program's exit code.

    Raises AgentrlError if the engine does not answer, or if a service cannot start or dies.
    """
    await _require_engine(config)
    program = AttachedProgram(command, stdout)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, program.signal, number)
    stop = asyncio.Event()
    running: list[asyncio.Task[int]] = []

    def begin(gateway: dict[str, Any]) -> None:
        running.append(asyncio.create_task(program.run(gateway), name="attached-program"))
        running[0].add_done_callback(lambda _: stop.set())

    try:
        await serve_alone(
            config, run_dir, weights, tokenizer, announce=begin, stop=stop, report=report
        )
    finally:
        for task in running:
            task.cancel()  # does nothing to one that is done
            await asyncio.wait([task])
    return running[0].result()


async def _require_engine(config: Config) -> None:
    """Raise EngineError if the engine is a server and nothing listens there: a program would
    repeat its first request for minutes.
    """
    engine = config.engine
    if not isinstance(engine, SglangEngineConfig | FixedEngineConfig):
        return
    server = HttpEngine(engine.url)
    try:
        await server.check_health()
    except EngineError as error:
        if error.unreachable:  # any answer will do: not every server has this endpoint
            raise EngineError(str(no_answer(error)), unreachable=True) from error
    finally:
        await server.close()


def _is_in_foreground() -> bool:
    """Return whether we have a terminal and are what it sends its ctrl-C to."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
