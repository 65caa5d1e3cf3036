"""Serve the embedded engine as a process: ``python -m runners.engines.embedded``.

Settings come on stdin, the address goes to stdout (protocol: ``runners.system.processes.service``).
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Literal

import uvloop
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conf.errors import AgentrlError, ExitCode
from runners.engines.contract import EngineError
from runners.engines.embedded.validation import describe_errors
from runners.system.diagnostics import install_diagnostics
from runners.system.processes import (
    PATIENCE_S,
    announce,
    listen,
    port_of,
    receive_settings,
    wait_for_parent_exit,
)

SWITCH_INTERVAL_S = 0.0005
"""Longest time that the HTTP thread holds the GIL while the decode loop waits for it. Python's
default is ten times longer, which is a whole decode step.
"""

SHUTDOWN_S = 1.0


class EngineSettings(BaseModel):
    """The settings that the parent sends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_path: Path
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535)
    max_running_requests: int = Field(64, ge=1)
    cache_tokens: int = Field(131_072, ge=1)
    max_context_tokens: int = Field(2048, ge=2)
    threads: int = Field(1, ge=1)
    tokenizer: Path | None = None
    weight_version: int = Field(0, ge=0)
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """As ``Precision.weights``."""
    router_noise: float = Field(0.0, ge=0)
    weight_plan: Path | None = None
    """The weights that each token is to be sampled with (``weight_plan.py``); None: the newest."""
    run_dir: Path | None = None
    """Folder for diagnostics; None: none are written."""
    watchdog_s: float = Field(0.0, ge=0)
    """As ``observe.watchdog_s``."""
    port_patience_s: float = Field(PATIENCE_S, gt=0)
    """Wait this long for the port: an engine of the same run that is just ending may hold it."""


async def serve(settings: EngineSettings, listener: socket.socket) -> None:
    """Serve until SIGTERM, SIGINT or the end of the parent."""
    # imported late: torch takes seconds, and bad settings or a port in use are known before
    from aiohttp import web

    from runners.engines.embedded.core import EngineCore
    from runners.engines.embedded.rounding import Precision
    from runners.engines.embedded.server import EngineServer
    from runners.engines.embedded.weight_plan import WeightPlan

    core = EngineCore(
        settings.model_path,
        max_running_requests=settings.max_running_requests,
        cache_tokens=settings.cache_tokens,
        max_context_tokens=settings.max_context_tokens,
        weight_version=settings.weight_version,
        tokenizer=settings.tokenizer,
        threads=settings.threads,
        precision=Precision(settings.weights, settings.router_noise),
    )
    plan = settings.weight_plan
    plans = WeightPlan({}) if plan is None else WeightPlan.read(plan)
    app = EngineServer(core, plans).application()
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        announce({"url": f"http://{settings.host}:{port_of(listener)}"})
        await _wait_for_stop()
    finally:
        # the core first: its requests fail at once, so the handlers that cleanup waits for end
        await core.close()
        await runner.cleanup()


def main() -> int:
    """Run the process; the return value is its exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        settings = EngineSettings.model_validate(receive_settings())
        with (
            _listen(settings) as listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop,
        ):
            loop.run(_serve_with_diagnostics(settings, listener))
    except ValidationError as error:
        print(f"engine settings: {'; '.join(describe_errors(error))}", file=sys.stderr)
        return ExitCode.USAGE
    except AgentrlError as error:
        print(f"engine: {error}", file=sys.stderr)
        return error.exit_code
    return ExitCode.DONE


async def _serve_with_diagnostics(settings: EngineSettings, listener: socket.socket) -> None:
    if settings.run_dir is None:
        await serve(settings, listener)
        return
    with install_diagnostics(
        settings.run_dir, "engine", watchdog_s=settings.watchdog_s, report=_print_line
    ):
        await serve(settings, listener)


def _print_line(line: str) -> None:
    print(f"engine: {line}", file=sys.stderr, flush=True)


def _listen(settings: EngineSettings) -> socket.socket:
    host, port = settings.host, settings.port
    try:
        return listen(host, port, patience_s=settings.port_patience_s)
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            reason = f"{where} is already in use; choose another port or 0 for any free one"
        else:
            reason = f"cannot listen on {where}: {error.strerror}"
        raise EngineError(reason) from error


async def _wait_for_stop() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watches: list[asyncio.Task[Any]] = [
        asyncio.create_task(stop.wait()),
        asyncio.create_task(wait_for_parent_exit()),
    ]
    await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
    for watch in watches:
        watch.cancel()


if __name__ == "__main__":
    sys.exit(main())
