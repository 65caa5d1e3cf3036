"""A real Ray cluster on this machine: each node is a ``ray start`` with its own processes, which a
test can kill as a machine dies.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from runners.system.processes.ports import free_port

STARTED = "Ray runtime started"
GAVE_UP = "timed out during startup"
STARTS = 4
"""Times that a node is started on a machine so busy that Ray gives up."""
START_S = 300.0
LIMITS = (
    *("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"),
    *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0", "--block"),
)
HEALTH = {
    # Ray gives up on its own services after a minute, which a busy machine needs.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    # Ray's defaults take half a minute to see that a node is gone.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End everything that runs on it, at once."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait()

    def workers(self) -> list[psutil.Process]:
        """Return the processes of our workers on it."""
        found = []
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("ray::Worker"):
                    found.append(process)
        return found

    def _processes(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@dataclass
class RayCluster:
    """A head and the nodes that have joined it."""

    directory: Path
    prefix: Sequence[str] = ()
    """The start of the head's command: runs it in another network."""
    nodes: list[Node] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The head's address, ``host:port``."""
        return (self.directory / "ray_current_cluster").read_text().strip()

    def head(self, *options: str) -> Node:
        """Start the head."""
        return self._start(
            self.prefix,
            "--head",
            "--port=0",
            "--include-dashboard=false",
            f"--temp-dir={self.directory}",
            f"--ray-client-server-port={free_port('127.0.0.1')}",
            *options,
        )

    def join(self, *options: str, prefix: Sequence[str] = ()) -> Node:
        """Start another node."""
        return self._start(prefix, f"--address={self.address}", *options)

    def _start(self, prefix: Sequence[str], *options: str) -> Node:
        for left in reversed(range(STARTS)):
            log = self.directory / f"node-{len(self.nodes)}.log"
            ray = Path(sys.executable).with_name("ray")
            with log.open("wb") as sink:
                process = subprocess.Popen(
                    [*prefix, ray, "start", *LIMITS, *options],
                    stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                    env={**os.environ, **HEALTH, "XDG_CACHE_HOME": str(self.directory / "cache")},
                    start_new_session=True,
                )  # fmt: skip
            node = Node(process, log)
            if self._has_started(node, can_retry=left > 0):
                break
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started has no parent now
        self.nodes.append(node)
        return node

    def _has_started(self, node: Node, *, can_retry: bool) -> bool:
        """Wait for a node; returns False if Ray gave up, which it does after 30 s."""
        until = time.monotonic() + START_S
        while STARTED not in (text := node.log.read_text(errors="replace")):
            if node.process.poll() is not None and can_retry and GAVE_UP in text:
                return False
            assert node.process.poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.1)
        return True


@contextmanager
def ray_cluster(prefix: Sequence[str] = (), *options: str) -> Iterator[RayCluster]:
    """Yield a cluster of one head; every process that was started is killed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # its sockets' paths are long
    cluster = RayCluster(directory, prefix)
    try:
        cluster.head(*options)
        yield cluster
    finally:
        for node in reversed(cluster.nodes):
            node.kill()
        shutil.rmtree(directory, ignore_errors=True)
