"""Serve a gateway without a campaign, in its own run directory, whose rollouts it keeps itself; and
run one program against it, outside of any sandbox: with the user's rights.

Invariants of such a program: it has the terminal, and its ctrl-C; what it has started ends with it;
the admin key is in no environment.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError
from conf.schema import Config
from conf.sections.engine import FixedEngineConfig, SglangEngineConfig
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError
from runners.engines.server_check import no_answer
from runners.gateway.client import GatewayAdmin
from runners.gateway.gateway_client import program_environment
from runners.gateway.replicas.replica_set import ReplicaSet
from runners.gateway.service import serve
from runners.gateway.settings import GatewaySettings
from runners.records.checkpoints import keep_tokenizer
from runners.records.store import STORE_FILE, RunStore, State
from runners.services.engine_service import start_engine
from runners.services.faults.wiring import choose_gateway_module, make_gateway_hooks
from runners.services.policy import find_captured_shape
from runners.system.diagnostics import install_diagnostics
from runners.system.processes import ServiceError, ServiceStarter, kill_tagged


async def serve_alone(
    config: Config,
    run_dir: Path,
    weights: Path | None,
    tokenizer: Path | None,
    *,
    announce: Callable[[dict[str, Any]], None],
    stop: asyncio.Event,
    report: Callable[[str], None],
) -> None:
    """Serve until ``stop``; announce what ``serve`` announces, when it is ready.

    ``report`` gets the watchdog's warnings. Raises AgentrlError if a service cannot start or dies.
    """
    died: list[ServiceError] = []
    has_served = False

    def announce_ready(info: dict[str, Any]) -> None:
        nonlocal has_served
        has_served = True
        announce(info)

    def service_died(error: ServiceError) -> None:
        died.append(error)
        stop.set()

    store = RunStore.create(run_dir, config.model_dump(mode="json"))
    with (
        _discarded_unless(lambda: has_served, run_dir),
        store,
        install_diagnostics(
            run_dir, "gateway", watchdog_s=config.observe.watchdog_s, report=report
        ),
    ):
        store.set_state(State.RUNNING, gateway=True)
        try:
            async with AsyncExitStack() as exits:
                if tokenizer is not None:
                    await asyncio.to_thread(keep_tokenizer, run_dir, tokenizer)
                starter = ServiceStarter(run_dir, exits, on_exit=service_died)
                url = await start_engine(config, starter, weights, tokenizer, 0)
                settings = GatewaySettings.from_config(
                    config,
                    run_dir=run_dir,
                    engine_url=url,
                    tokenizer=tokenizer,
                    routing=find_captured_shape(config, weights),
                    keep_rollouts=True,
                    monitored=True,
                )
                if config.gateway.replicas == 1:
                    hooks = make_gateway_hooks(config.faults)
                    await serve(settings, announce=announce_ready, stop=stop, hooks=hooks)
                else:
                    program = choose_gateway_module(config.faults, settings.model_dump(mode="json"))
                    replicas = ReplicaSet(
                        settings, config.gateway.replicas, program, starter, report=report
                    )
                    exits.push_async_callback(replicas.stop)
                    admin = await replicas.start()
                    announce_ready(
                        {
                            "url": admin.urls[0],
                            "urls": admin.urls,
                            "admin_key": admin.admin_key,
                            "pid": os.getpid(),
                        }
                    )
                    await stop.wait()
            if died:
                raise died[0]
        except AgentrlError as error:
            store.set_state(
                State.FAILED, exit_code=int(error.exit_code), message=str(error), gateway=True
            )
            raise
        store.set_state(State.DONE, exit_code=0, gateway=True)


@contextmanager
def _discarded_unless(is_used: Callable[[], bool], run_dir: Path) -> Iterator[None]:
    """Remove the store that was made for the block if it fails before anything used it, so that
    another try may have the directory; logs stay.
    """
    try:
        yield
    except BaseException:
        if not is_used():
            for suffix in ("", "-wal", "-shm"):
                (run_dir / f"{STORE_FILE}{suffix}").unlink(missing_ok=True)
        raise


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
