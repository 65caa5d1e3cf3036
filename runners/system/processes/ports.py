"""Listen on a TCP port: any free one, or a fixed one that a dying predecessor may still hold."""

from __future__ import annotations

import errno
import random
import socket
import time

PATIENCE_S = 5.0
"""Seconds to retry a port in use: after ``kill -9`` of a run its services end within one second."""

BACKLOG = 1024
"""Connections that the kernel queues; a step's agents may all connect in one moment."""
POLL_S = 0.2


def listen(host: str, port: int, *, patience_s: float) -> socket.socket:
    """Return a listening TCP socket; port 0 is any free one. Blocks; raises OSError.

    A fixed port that is in use is retried for ``patience_s``.
    """
    family, *_, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    ends = time.monotonic() + patience_s
    while True:
        try:
            return socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= ends:
                raise
        # Jitter: two runs that wait for the same port must not poll in step.
        time.sleep(POLL_S * random.uniform(0.5, 1.0))


def port_of(listener: socket.socket) -> int:
    """Return the port that a socket is bound to."""
    port: int = listener.getsockname()[1]
    return port


def free_port(host: str) -> int:
    """Return a port that nothing listens on now, for a program that cannot be given a socket.

    Another process may take it before that program listens.
    """
    with listen(host, 0, patience_s=0.0) as listener:
        return port_of(listener)
