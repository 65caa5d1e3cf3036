"""Place one worker on each node that the driver names, by Ray.

Invariant: this is the one process of a run that speaks Ray (started by ``join``), for Ray ends a
process that loses its cluster, takes over its signals and writes to its terminal.
No worker outlives it, for a worker is a Ray actor of its job; when the driver is gone, it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conf.errors import ExitCode
from runners.processes.service import announce, receive_settings, wait_for_parent_exit
from runners.ray_workers.json_http import Handler, JsonServer
from runners.ray_workers.remote_errors import ExecutorError, NodeLost
from runners.ray_workers.worker import Worker

_log = logging.getLogger(__name__)

CONNECT_S = 5.0
"""Time to find out whether anybody listens at the head's address."""
HOST = "127.0.0.1"
CLOSE_S = 20.0
"""Time for a worker to remove what it has made."""
MESSAGE_CHARACTERS = 300
"""Length to which an error of Ray is cut: it writes pages."""


class WorkerPlacement:
    """The workers of one run."""

    def __init__(self, *, driver_node: bool) -> None:
        """``driver_node``: whether the node of this machine gets a worker, too."""
        self._driver_node = driver_node
        self._actors: dict[str, Any] = {}
        """By node."""
        self._closed = False
        self.handlers: Mapping[str, Handler] = {
            "nodes": self._list_nodes,
            "run": self._run_worker,
            "close": self.close,
        }
        """The functions that the driver calls."""

    async def close(self, *_: object) -> list[str]:
        """Have all workers remove what they made, and end them; returns the nodes that did."""
        self._closed = True
        actors, self._actors = self._actors, {}
        closed = await asyncio.gather(*(_close(*each) for each in actors.items()))
        return [node for node, done in zip(actors, closed, strict=True) if done]

    async def _list_nodes(self, *_: object) -> list[dict[str, str]]:
        mine = ray.get_runtime_context().get_node_id()
        try:
            nodes = await asyncio.to_thread(ray.nodes)
        except RayError as error:  # the head does not answer; Ray ends this process in the end
            raise ExecutorError(_shorten(error)) from error
        return [
            {
                "node_id": node["NodeID"],
                "name": f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}",
                "address": node["NodeManagerAddress"],
            }
            for node in nodes
            if node["Alive"] and (self._driver_node or node["NodeID"] != mine)
        ]

    async def _run_worker(self, _: object, body: dict[str, str]) -> dict[str, Any] | None:
        """Start a worker and wait for its end; returns the encoded error with which it ends.

        Raises NodeLost if it does not end itself, and ExecutorError if the node lacks agentrl.
        """
        if self._closed:
            raise ExecutorError("the run's workers are closed")
        node, where = body["node"], NodeAffinitySchedulingStrategy(body["node_id"], soft=False)
        if node in self._actors:
            _kill(self._actors[node])  # the driver has given it up; it may hang
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": where}
        actor: Any = ray.remote(Worker).options(**options).remote()
        self._actors[node] = actor
        try:
            ended: dict[str, Any] | None = await actor.run.remote(body["url"], body["token"], node)
        except RayError as error:
            if "ModuleNotFoundError" in str(error):
                raise ExecutorError(
                    f"it lacks agentrl, or something that it needs: {_shorten(error)}; install the "
                    "same on every node"
                ) from error
            raise NodeLost(_reason(error), node) from error
        finally:
            if self._actors.get(node) is actor:
                del self._actors[node]
                _kill(actor)
        return ended


async def _close(node: str, actor: Any) -> bool:
    """End a worker; returns whether it has removed everything."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await actor.close.remote()
    except TimeoutError:
        _log.warning("node %s: its worker did not close within %g s", node, CLOSE_S)
        return False
    except RayError as error:
        _log.warning("node %s: %s", node, _reason(error))
        return False
    finally:
        _kill(actor)
    return True


def _kill(actor: Any) -> None:
    with suppress(RayError):
        ray.kill(actor, no_restart=True)


def _reason(error: RayError) -> str:
    name = type(error).__name__
    if isinstance(error, ActorDiedError | ActorUnavailableError):
        return f"its worker is gone ({name})"
    return f"{name}: {_shorten(error)}"


def _shorten(error: BaseException) -> str:
    """Return the end of an error of Ray, where the cause stands."""
    text = " ".join(str(error).split())
    return text if len(text) <= MESSAGE_CHARACTERS else f"…{text[-MESSAGE_CHARACTERS:]}"


def _connect(address: str | None) -> str:
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
            f"{_shorten(error)}; `ray start --head` begins one, "
            "`ray start --address=HEAD:PORT` makes this machine a part of another's",
            ExitCode.PREFLIGHT,
        ) from error
    found: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return found


async def _serve(settings: dict[str, Any]) -> None:
    """Serve the driver until it is gone or ends this process."""
    address = _connect(settings["address"])
    token = secrets.token_urlsafe(16)
    placement = WorkerPlacement(driver_node=settings["driver_node"])
    server = JsonServer({token: "driver"}, placement.handlers)
    port = await server.start(HOST)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    announce({"address": address, "url": f"http://{HOST}:{port}", "token": token})
    ends = [asyncio.ensure_future(each) for each in (wait_for_parent_exit(), stop.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await placement.close()
    await server.close()


def main() -> int:
    """Return the process's exit code; the reason of a refusal is announced."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    settings = receive_settings()
    try:
        asyncio.run(_serve(settings))
    except ExecutorError as error:
        announce({"refused": str(error), "exit_code": int(error.exit_code)})
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
