"""``python -m runners.gateway``: the gateway as a child process of a run (protocol:
``runners.system.processes.service``).
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
from runners.gateway.gc_tuning import COLLECTOR
from runners.gateway.service import NO_HOOKS, GatewayHooks, serve
from runners.gateway.settings import GatewaySettings
from runners.system.diagnostics import install_diagnostics
from runners.system.processes import announce, receive_settings, wait_for_parent_exit

_log = logging.getLogger(__name__)

SWITCH_S = 0.0005
"""Time after which a busy loop lets the turn log's thread go on, which asks for the interpreter
after each of its half a dozen calls of SQLite and the system. With Python's own 5 ms a turn that is
stored beside others waits for them ten times as long as its work takes.
"""

PopHooks = Callable[[dict[str, Any]], GatewayHooks]
"""Takes from the received settings what is not the gateway's own, and makes its hooks of it."""


async def run(pop_hooks: PopHooks) -> None:
    """Serve until SIGTERM, or until the parent is gone."""
    received = receive_settings()
    hooks = pop_hooks(received)
    settings = GatewaySettings.model_validate(received)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def stop_with_parent() -> None:
        # nobody else would ever stop the gateway of a killed driver, and it holds port and store
        await wait_for_parent_exit()
        stop.set()

    name = f"gateway-{settings.replica.number}" if settings.replica else "gateway"
    watch = asyncio.create_task(stop_with_parent(), name="parent-watch")
    try:
        with install_diagnostics(
            settings.run_dir, name, watchdog_s=settings.watchdog_s, report=_log.warning
        ):
            await serve(settings, announce=announce_frozen, stop=stop, hooks=hooks)
    finally:
        watch.cancel()


def announce_frozen(info: dict[str, Any]) -> None:
    """Announce the service, after all that is imported by now was taken from the garbage collector:
    to walk through it again and again would hold up the loop for 0.1 s each time.
    """
    COLLECTOR.freeze()
    announce(info)


def main(pop_hooks: PopHooks = lambda settings: NO_HOOKS) -> int:
    """Return the process's exit code; the reason of a failure goes to stderr."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    sys.setswitchinterval(SWITCH_S)
    try:
        uvloop.run(run(pop_hooks))
    except AgentrlError as error:
        with suppress(
            OSError
        ):  # the log's disk may be full; the exit code still names the kind of failure
            print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
