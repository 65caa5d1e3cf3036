"""Join a Ray cluster, list its nodes, and run a worker on a node as an asynchronous actor.

Invariant: the only module that imports Ray, and the only one that reads its errors. No worker
outlives this process: Ray ends an actor with the process that made it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conf.errors import AgentrlError, ExitCode, error_text
from runners.services.ray_workers.errors import ExecutorError, NodeLost, WorkerError
from runners.services.ray_workers.node_worker import NodeInfo
from runners.services.ray_workers.worker import Worker

CONNECT_S = 5.0
"""Time to find out whether anybody listens at the head's address."""
RECONNECT_S = 600
"""Ray ends a process that has not reached the head for so long (a minute by default); the run's
own end, which is orderly, comes before that.
"""
CALLS_PER_ATTEMPT = 2
"""Calls of a worker that one attempt may have in progress: its run, its cancellation."""
OTHER_CALLS = 8
MESSAGE_CHARACTERS = 300
"""Length to which an error of Ray is cut: it writes pages."""


class RayCluster:
    """The cluster that this process has joined."""

    def __init__(self, address: str | None, *, driver_node: bool, rollouts_per_node: int) -> None:
        """Join it; blocks, and raises ExecutorError.

        ``driver_node``: whether the node of this machine is among ``nodes``.
        """
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            _connect(address)
        elif address not in (None, found := ray.get_runtime_context().gcs_address):
            raise ExecutorError(
                f"executor.address={address}, but this process is part of the Ray cluster at "
                f"{found}: leave executor.address away",
                ExitCode.PREFLIGHT,
            )
        self._driver_node = driver_node
        self._concurrency = CALLS_PER_ATTEMPT * rollouts_per_node + OTHER_CALLS
        self.address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        """This machine's address in the cluster."""

    def leave(self) -> None:
        """Leave the cluster, unless this process belonged to it before."""
        if self._is_ours:
            ray.shutdown()

    async def nodes(self) -> list[NodeInfo]:
        """Return the nodes that are alive; raises ExecutorError."""
        mine = ray.get_runtime_context().get_node_id()
        try:
            nodes = await asyncio.to_thread(ray.nodes)
        except RayError as error:
            raise ExecutorError(f"the Ray cluster does not answer: {_shorten(error)}") from error
        return [
            NodeInfo(
                node["NodeID"],
                f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}",
                node["NodeManagerAddress"],
            )
            for node in nodes
            if node["Alive"] and (self._driver_node or node["NodeID"] != mine)
        ]

    def start_worker(self, node: NodeInfo) -> RayWorker:
        """Start a worker; its first call tells whether it runs."""
        # Nothing is repeated by Ray: a worker that is gone ends its attempts, and which of them
        # run again is the pool's decision.
        options = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": self._concurrency,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        }
        return RayWorker(ray.remote(Worker).options(**options).remote(node.name))


class RayWorker:
    """A worker on a node."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of it; raises AgentrlError: what the method raised, or NodeLost."""
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except RayError as error:
            raise _to_ours(error) from error

    def kill(self) -> None:
        """End it at once; every call in progress raises NodeLost."""
        ray.kill(self._actor)


def _to_ours(error: RayError) -> AgentrlError:
    """Return the error of agentrl for what a call of a worker raised."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, AgentrlError):
            return cause
        return WorkerError(f"{type(cause).__name__}: {error_text(cause)}")
    if "ModuleNotFoundError" in str(error):
        return ExecutorError(
            f"it lacks agentrl, or something that it needs: {_shorten(error)}; install the same on "
            "every node"
        )
    name = type(error).__name__
    if isinstance(error, RayActorError):
        return NodeLost(f"its worker is gone ({name})")
    if isinstance(error, NodeDiedError | ObjectLostError):
        return NodeLost(f"{name}: {_shorten(error)}")
    return WorkerError(f"{name}: {_shorten(error)}")


def _shorten(error: BaseException) -> str:
    """Return the end of an error of Ray, where the cause stands."""
    text = " ".join(str(error).split())
    return text if len(text) <= MESSAGE_CHARACTERS else f"…{text[-MESSAGE_CHARACTERS:]}"


def _connect(address: str | None) -> None:
    """Join a running cluster; raises ExecutorError.

    Ray itself would start a new cluster where it does not find one, and wait a minute for a head
    that is not there.
    """
    given = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_S))
    try:
        host, _, port = (given or "").rpartition(":")
        if port.isdecimal():
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address=given or "auto", log_to_driver=False, logging_level=logging.CRITICAL)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        named = f"executor.address={address}" if address else f"RAY_ADDRESS={given}"
        raise ExecutorError(
            f"no Ray cluster at {named if given else 'this machine'}: "
            f"{_shorten(error)}; `ray start --head` begins one, "
            "`ray start --address=HEAD:PORT` makes this machine a part of another's",
            ExitCode.PREFLIGHT,
        ) from error
