"""The first process of every sandbox: announces itself, starts the command, reaps.

It runs inside as ``python -I -S launcher.py STATUS CONTROL ARGV…``:

* STATUS is a socket to the host. ``ready`` goes out (the kernel attaches our pid as the host sees
  it), the host sets limits on that pid, and one byte comes back before anything else happens. Last,
  the command's wait status goes out. When the host's end closes before that, the driver has died:
  everything here ends at once.
* CONTROL is the driver's connection to the gateway's control socket, or -1. A socket that listens
  on this sandbox's own loopback goes out on it; the gateway answers ``1`` once it serves there.

As pid 1 of its namespace its end is the end of everything the command started. It imports next to
nothing: a campaign starts it thousands of times, and ``os`` alone is a tenth of its CPU time.
"""

# ruff: noqa: PTH123 (pathlib takes 6 ms to import)

import _signal  # type: ignore[import-not-found]
import posix
import sys

GATEWAY_PORT = 8080


def serve_gateway(control_fd: int) -> None:
    """Hand a listening socket to the gateway; exits if the gateway does not take it."""
    import _socket as net

    listener = net.socket(net.AF_INET, net.SOCK_STREAM)
    listener.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", GATEWAY_PORT))
    listener.listen(64)
    control = net.socket(net.AF_UNIX, net.SOCK_STREAM, 0, control_fd)
    handle = listener.fileno().to_bytes(4, sys.byteorder)
    control.sendmsg([b"l"], [(net.SOL_SOCKET, net.SCM_RIGHTS, handle)])
    if control.recv(1) != b"1":
        sys.exit("the gateway refused the sandbox's session")
    control.close()
    listener.close()


def end_with_driver(status: int) -> None:
    """End this process group, and with pid 1 its namespace, when the host's end of STATUS closes.

    The kernel says so by SIGIO; whoever else sends that signal is not believed.
    """
    import fcntl

    def look(*_: object) -> None:
        try:
            gone = not posix.read(status, 1)
        except BlockingIOError:
            gone = False
        except OSError:  # reset: it had unread data
            gone = True
        if gone:
            posix.kill(0, _signal.SIGKILL)
            posix._exit(1)  # pid 1 is immune to its own signals

    posix.set_blocking(status, False)
    _signal.signal(_signal.SIGIO, look)
    fcntl.fcntl(status, fcntl.F_SETOWN, posix.getpid())
    fcntl.fcntl(status, fcntl.F_SETFL, fcntl.fcntl(status, fcntl.F_GETFL) | fcntl.FASYNC)
    look()  # it may have closed before anybody listened


def main() -> None:
    """Start the command in a child and reap until it ends."""
    status, control, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if control >= 0:
        serve_gateway(control)
    posix.write(status, b"ready")
    if posix.read(status, 1) != b"g":
        sys.exit("the host went away")
    end_with_driver(status)
    child = posix.fork()
    if child == 0:
        _signal.signal(_signal.SIGIO, _signal.SIG_DFL)
        posix.close(status)
        become(argv)
        return
    ended, code = 0, 0
    while ended != child:
        ended, code = posix.wait()
    posix.write(status, str(code).encode())
    posix._exit(0)


def become(argv: list[str]) -> None:
    """Turn this process into the command.

    A command ``python -I -S FILE …`` goes on in this interpreter, which was started with the same
    flags: a second start would cost as much CPU as the rest of the sandbox.
    """
    if argv[:3] != ["python", "-I", "-S"]:
        import os

        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            posix.write(2, f"{argv[0]}: {error.strerror}\n".encode())
            posix._exit(127 if isinstance(error, FileNotFoundError) else 126)
    program = type(sys)("__main__")
    program.__file__ = argv[3]
    sys.argv, sys.modules["__main__"] = argv[3:], program
    with open(argv[3], "rb") as file:
        text = file.read()
    if argv[3].endswith(".pyc"):
        import marshal

        code = marshal.loads(memoryview(text)[16:])
    else:
        code = compile(text, argv[3], "exec")
    exec(code, program.__dict__)


if __name__ == "__main__":
    main()
