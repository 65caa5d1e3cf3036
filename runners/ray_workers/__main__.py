"""``python -m runners.ray_workers``: the one process of a run that speaks Ray (start and end of it:
``runners.processes.service``).

Ray ends a process that loses its cluster, takes over its signals and writes to its terminal: so it
is not the driver's. When the driver is gone this process ends, and with it the workers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from conf.errors import ExitCode
from runners.processes.service import announce, receive_settings, wait_for_parent_exit
from runners.ray_workers.bridge import Bridge, told
from runners.ray_workers.remote_errors import ExecutorError
from runners.ray_workers.rpc import Line

CONNECT_S = 5.0
"""To find out whether anybody listens at the head's address."""


def connect(address: str | None) -> str:
    """Join a running cluster and return this machine's address in it; raises ExecutorError.

    Ray itself would start a cluster of its own where it finds none, and wait a minute for a head
    that is not there.
    """
    given = address or os.environ.get("RAY_ADDRESS")
    try:
        host, _, port = (given or "").rpartition(":")
        if port.isdecimal():
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address=given or "auto", log_to_driver=False, logging_level=logging.WARNING)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        named = f"executor.address={address}" if address else f"RAY_ADDRESS={given}"
        raise ExecutorError(
            f"no Ray cluster at {named if given else 'this machine'}: "
            f"{told(error)}; `ray start --head` begins one, "
            "`ray start --address=HEAD:PORT` makes this machine a part of another's",
            ExitCode.PREFLIGHT,
        ) from error
    found: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return found


async def serve(settings: dict[str, Any]) -> None:
    """Serve the driver until he is gone, or says that it is enough."""
    address = connect(settings.pop("address"))
    bridge = Bridge(address, **settings)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer, bridge.answer)
        bridge.attach(line)
        await line.serve()

    path = Path(tempfile.mkdtemp(prefix="line-")) / "line"
    server = await asyncio.start_unix_server(take, path)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    announce({"address": address, "line": str(path)})
    ends = [asyncio.ensure_future(each) for each in (wait_for_parent_exit(), stop.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    server.close()
    await bridge.close()


def main() -> int:
    """Return the process's exit code; what the driver must know is announced."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    settings = receive_settings()
    try:
        asyncio.run(serve(settings))
    except ExecutorError as error:
        announce({"refused": str(error), "exit_code": int(error.exit_code)})
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
