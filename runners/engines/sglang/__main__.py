"""Run an SGLang server as a service of a run: ``python -m runners.engines.sglang``.

SGLang does not know our protocol (``runners.system.processes.service``), so this process is in
between: it starts the server, announces it once it generates, ends when the server ends, and ends
the server
when the parent is gone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from contextlib import suppress

import aiohttp

from conf.errors import AgentrlError
from runners.system.processes import (
    ServiceError,
    announce,
    free_port,
    receive_settings,
    wait_for_parent_exit,
)

POLL_S = 0.2
"""Between two probes of its health; SGLang takes a second for each one itself."""
PROBE_S = 30.0
"""Deadline of one probe; a server that is loading may accept it and not answer."""
GRACE_S = 3.0
"""From SIGTERM to SIGKILL: less than the grace that the parent gives to this process."""


async def run() -> int:
    """Serve until SIGTERM or the parent is gone; returns the exit code."""
    settings = receive_settings()
    if importlib.util.find_spec("sglang") is None:
        raise ServiceError(
            "engine=sglang_launch needs SGLang: pip install 'agentrl-campaigns[sglang]'"
        )
    host = settings["host"]
    port = settings["port"] or free_port(host)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "sglang.launch_server", *settings["arguments"]),
        *("--host", host, "--port", str(port)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,  # our stdout carries the protocol
        start_new_session=True,  # a process group of its own: the server and its schedulers
    )
    try:
        ended = asyncio.create_task(server.wait(), name="server")
        waits = [
            asyncio.create_task(stop.wait(), name="stop"),
            asyncio.create_task(wait_for_parent_exit(), name="parent-watch"),
            ended,
        ]
        shown = "127.0.0.1" if host == "0.0.0.0" else host
        ready = asyncio.create_task(_wait_until_generating(f"http://{shown}:{port}"), name="ready")
        await asyncio.wait([*waits, ready], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            announce({"url": ready.result(), "pid": server.pid})
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in (*waits, ready):
            task.cancel()
        if ended.done() and not ended.cancelled():
            raise ServiceError(f"SGLang ended by itself (exit {ended.result()})")
        return 0
    finally:
        await _end_group(server)


async def _wait_until_generating(url: str) -> str:
    """Return ``url`` once the server there generates."""
    timeout = aiohttp.ClientTimeout(total=PROBE_S)
    async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as client:
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with client.get(f"{url}/health_generate") as response:
                    if response.status == 200:
                        return url
            await asyncio.sleep(POLL_S)


async def _end_group(server: asyncio.subprocess.Process) -> None:
    """End the server's process group: a server that dies alone leaves schedulers that hold GPUs."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await server.wait()
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    await server.wait()


def main() -> int:
    """Return the process's exit code; the reason of a failure goes to stderr."""
    try:
        return asyncio.run(run())
    except AgentrlError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    raise SystemExit(main())
