"""``python -m runners.gateway``: the gateway as a child process of a run (protocol:
``runners.service``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import uvloop

from conf.errors import AgentrlError
from runners.gateway.service import serve
from runners.service import announce, parent_gone, receive_settings


async def run() -> None:
    """Serve until SIGTERM, or until the parent is gone."""
    settings = receive_settings()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def leave_with_parent() -> None:
        await parent_gone()
        stop.set()

    orphaned = asyncio.create_task(leave_with_parent())
    try:
        await serve(settings, announce=announce, stop=stop)
    finally:
        orphaned.cancel()


def main() -> int:
    """Return the process's exit code; the reason of a failure goes to stderr."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    try:
        uvloop.run(run())
    except AgentrlError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
