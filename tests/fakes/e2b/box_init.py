"""The first process of a box: start programs for the server, report their end, reap the others.

Runs inside as ``python -I -S box_init.py FD``. Each message on the socket is a JSON object and, to
start a program, its three standard descriptors.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any


def start(request: dict[str, Any], handles: list[int]) -> int:
    """Start a program as a user; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
        os.closerange(3, 64)
        os.setgroups([])
        os.setgid(request["uid"])
        os.setuid(request["uid"])
        os.chdir(request["cwd"])
        for number in (signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        os.write(2, f"{request['argv'][0]}: {error.strerror}\n".encode())
    os._exit(127)


def serve(channel: socket.socket) -> None:
    """Serve until the server's end of the socket closes."""
    wakeup_reader, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    os.set_blocking(wakeup_reader, False)
    # With a handler, even an empty one, SIGCHLD writes to the pipe, and select returns.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([channel.fileno(), wakeup_reader], [], [])
        if channel.fileno() in ready:
            space = socket.CMSG_SPACE(3 * 4)
            try:
                data, ancillary, _, _ = channel.recvmsg(1 << 20, space)
            except ConnectionResetError:
                return
            if not data:
                return
            handles = array.array("i")
            for _, _, payload in ancillary:
                handles.frombytes(payload)
            request = json.loads(data)
            if "signal" in request:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(request["pid"], request["signal"])
                continue
            pid = start(request, list(handles))
            for handle in handles:
                os.close(handle)
            channel.send(json.dumps({"id": request["id"], "pid": pid}).encode())
        if wakeup_reader in ready:
            os.read(wakeup_reader, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                channel.send(json.dumps({"pid": ended[0], "status": ended[1]}).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
