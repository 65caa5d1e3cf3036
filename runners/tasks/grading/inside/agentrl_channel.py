"""The client of the relay (``relay.py``): tell it something from a process under test.

It runs in the Python of the project under test, from Python 3.6 on.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VARIABLE = "AGENTRL_CHANNEL"
"""Names the relay's socket. The first Python of a script removes it, so what that starts in its
turn is not observed: a test may well run another Python, and pytest, for its own ends.
"""


def make_teller(end: "Any", busy: "list[str]") -> "Callable[[str], None]":
    """Return a function that sends one message; what the relay refuses is lost.

    ``busy`` is not empty while code under test runs. A message from there is a forgery: it breaks
    the connection.
    """
    # Taken before the code under test can replace them.
    send, receive, failure = end.sendall, end.recv, OSError

    def tell(message: str) -> None:
        try:
            send(b"ask\n" if not busy else b"forged\n")
            token = b""
            while not token.endswith(b"\n"):
                data = receive(64)
                if not data:
                    return
                token += data
            send(token[:-1] + b" " + message.encode("utf-8", "replace") + b"\n")
        except failure:
            return

    if hasattr(os, "register_at_fork"):  # from Python 3.7 on
        os.register_at_fork(after_in_child=end.close)
    return tell


NOTE_STATUS: "list[Callable[[int], None]]" = []
"""Takes the exit status of a test framework that runs as the program of its process, before any
code under test is imported (``end_proof.py``).
"""

BUSY: "list[str]" = []
"""Not empty while code under test runs (``make_teller``)."""


def connect(keep_variable: bool = False) -> "Callable[[str], None] | None":
    """Return the connection of this process; None if nobody asks for its results."""
    path = os.environ.get(VARIABLE, "")
    if not keep_variable:
        os.environ.pop(VARIABLE, None)
    if not path:
        return None
    import socket  # here, as it takes 4 ms

    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.connect(path)
    except OSError as error:
        sys.stderr.write(f"agentrl_channel: {error}\n")
        return None
    return make_teller(end, BUSY)


_found: "list[Callable[[str], None] | None]" = []


def get_teller(keep_variable: bool = False) -> "Callable[[str], None] | None":
    """Return the one connection of this process; it is made at the first call."""
    if not _found:
        _found.append(connect(keep_variable))
    return _found[0]
