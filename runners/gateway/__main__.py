"""``python -m runners.gateway``: the gateway as a child process of a run (protocol:
``runners.processes.service``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvloop

from conf.errors import AgentrlError
from runners.diagnostics.diagnostics import diagnostics
from runners.gateway.service import GatewayHooks, GatewaySettings, serve
from runners.processes.service import announce, receive_settings, wait_for_parent_exit

_log = logging.getLogger(__name__)

TakeParts = Callable[[dict[str, Any]], GatewayHooks]
"""Takes out of the settings what the gateway is put together from."""


async def run(pop_gateway_parts: TakeParts) -> None:
    """Serve until SIGTERM, or until the parent is gone."""
    received = receive_settings()
    parts = pop_gateway_parts(received)
    settings = GatewaySettings.model_validate(received)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def leave_with_parent() -> None:
        await wait_for_parent_exit()
        stop.set()

    orphaned = asyncio.create_task(leave_with_parent(), name="parent-watch")
    try:
        with diagnostics(
            settings.run_dir, "gateway", watchdog_s=settings.watchdog_s, tell=_log.warning
        ):
            await serve(settings.model_dump(), announce=announce, stop=stop, parts=parts)
    finally:
        orphaned.cancel()


def main(pop_gateway_parts: TakeParts = lambda settings: GatewayHooks()) -> int:
    """Return the process's exit code; the reason of a failure goes to stderr."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    try:
        uvloop.run(run(pop_gateway_parts))
    except AgentrlError as error:
        with suppress(OSError):  # the log's disk may be full too; the exit code still tells
            print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
