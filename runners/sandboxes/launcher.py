"""The first process of every sandbox: announces itself, sets limits, starts the command, reaps.

It runs inside as ``python -I -S launcher.py STATUS CONTROL MEMORY PROCESSES FILE CPU ARGV…``:

* STATUS is a socket to the host. ``ready`` goes out (the kernel attaches our pid as the host sees
  it), one byte comes back before anything else happens, and the command's wait status goes out.
* CONTROL is the driver's connection to the gateway's control socket, or -1. A socket that listens
  on this sandbox's own loopback goes out on it; the gateway answers ``1`` once it serves there.
* the rest are resource limits in bytes, processes, bytes and seconds; -1: none.

As pid 1 of its namespace its end is the end of everything the command started.
"""

# ruff: noqa: PTH123 (pathlib takes 6 ms to import)

import os
import resource
import sys
from _socket import (
    AF_INET,
    AF_UNIX,
    SCM_RIGHTS,
    SO_REUSEADDR,
    SOCK_SEQPACKET,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
)

GATEWAY_PORT = 8080


def serve_gateway(control_fd: int) -> None:
    """Hand a listening socket to the gateway; exits if the gateway does not take it."""
    listener = socket(AF_INET, SOCK_STREAM)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", GATEWAY_PORT))
    listener.listen(64)
    control = socket(AF_UNIX, SOCK_STREAM, 0, control_fd)
    handle = listener.fileno().to_bytes(4, sys.byteorder)
    control.sendmsg([b"l"], [(SOL_SOCKET, SCM_RIGHTS, handle)])
    if control.recv(1) != b"1":
        sys.exit("the gateway refused the sandbox's session")
    control.close()
    listener.close()


def limit(memory: int, processes: int, file: int, cpu: int) -> None:
    """Set the command's resource limits; -1 leaves one as it is."""
    wanted = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_FSIZE: file,
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        if value >= 0 and (hard == resource.RLIM_INFINITY or value <= hard):
            resource.setrlimit(kind, (value, value))


def main() -> None:
    """Start the command in a child and reap until it ends."""
    status_fd, control_fd, *limits = (int(word) for word in sys.argv[1:7])
    argv = sys.argv[7:]
    status = socket(AF_UNIX, SOCK_SEQPACKET, 0, status_fd)
    os.set_inheritable(status_fd, False)
    if control_fd >= 0:
        serve_gateway(control_fd)
    status.send(b"ready")
    if status.recv(1) != b"g":
        sys.exit("the host went away")
    child = os.fork()
    if child == 0:
        status.close()
        limit(*limits)
        become(argv)
        return
    ended, code = 0, 0
    while ended != child:
        ended, code = os.wait()
    status.send(str(code).encode())
    os._exit(0)


def become(argv: list[str]) -> None:
    """Turn this process into the command.

    A command ``python -I -S FILE …`` goes on in this interpreter, which was started with the same
    flags: a second start would cost as much CPU as the rest of the sandbox.
    """
    if argv[:3] != ["python", "-I", "-S"]:
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
            sys.stderr.flush()
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    program = type(sys)("__main__")
    program.__file__ = argv[3]
    sys.argv, sys.modules["__main__"] = argv[3:], program
    with open(argv[3], "rb") as file:
        code = compile(file.read(), argv[3], "exec")
    exec(code, program.__dict__)


if __name__ == "__main__":
    main()
