"""The first process of every sandbox: announce itself, wait for its command, start it, reap.

It runs inside as ``python -I -S launcher.py STATUS COMMAND LISTENS NAMESPACED``:

* STATUS is a socket to the host. ``ready`` goes out (the kernel attaches our pid as the host sees
  it), with LISTENS=1 also a socket that listens on this sandbox's own loopback, for the gateway.
  The host sets limits on that pid, and one byte comes back before anything else happens. Last, the
  command's wait status goes out.
* COMMAND is a file in memory that the host has written by then: the number of arguments, the
  arguments, ``NAME=VALUE`` of the environment, with a zero byte between two.

Invariant: nothing outlives this process or the driver. As pid 1 of its namespace its end is the end
of everything the command started; with NAMESPACED=0 it adopts what loses its parent, and kills it.
It ends when the host's end of STATUS closes. That is the parent-death pipe of sandboxes: it also
holds where PR_SET_PDEATHSIG does not (``launch.py``).

The file is mounted into the sandbox alone, so it imports nothing of ours. It also imports next to
nothing else: a campaign starts it thousands of times, and ``os`` alone is a tenth of its CPU time.
"""

# ruff: noqa: PTH123 (pathlib takes 6 ms to import)

import _signal  # type: ignore[import-not-found]
import posix
import sys

GATEWAY_PORT = 8080
ENOENT, ENOTDIR = 2, 20
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


def set_option(option: int, value: int) -> None:
    """Call prctl(2); by ``_ctypes`` alone, because ``ctypes`` takes 20 ms to import."""
    import _ctypes

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    if _ctypes.call_function(prctl, (option, value, 0, 0, 0)) != 0:
        posix.write(2, b"prctl failed\n")
        posix._exit(1)


def prepare(*, namespaced: bool) -> None:
    """Protect this process from its command, or become the one that adopts its orphans.

    A process that is not dumpable has its memory, environment and descriptors in /proc closed to
    all others of its user. A child that runs a Python program without exec (``become``) inherits
    that: what an agent or a grader keeps from the commands it starts is in its memory. Programs
    that are executed get it back. Without namespaces the driver must find processes by their
    environment, and root reads everything anyway.
    """
    import fcntl  # noqa: F401 (for later: now there is time, the command is not here yet)

    if namespaced:
        set_option(PR_SET_DUMPABLE, 0)
    else:
        set_option(PR_SET_CHILD_SUBREAPER, 1)


def announce(status: int, *, listens: bool) -> None:
    """Report that we are ready, and hand a listening socket for the gateway to the host."""
    if not listens:
        posix.write(status, b"ready")
        return
    import _socket as net

    listener = net.socket(net.AF_INET, net.SOCK_STREAM)
    listener.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", GATEWAY_PORT))
    listener.listen(64)
    # SCM_RIGHTS passes the open socket itself. It stays bound in this network namespace, which no
    # process outside could connect to, so the gateway can answer in here without any route.
    host = net.socket(net.AF_UNIX, net.SOCK_SEQPACKET, 0, status)
    handle = listener.fileno().to_bytes(4, sys.byteorder)
    host.sendmsg([b"ready"], [(net.SOL_SOCKET, net.SCM_RIGHTS, handle)])
    host.detach()  # it is STATUS, which must stay open
    listener.close()


def end_with_driver(status: int, *, namespaced: bool) -> None:
    """End with everything that the command started when the host's end of STATUS closes.

    The kernel reports that by SIGIO, which interrupts wait(2): this process has no loop that could
    poll. The command can send SIGIO too, so the handler looks at the socket itself.
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
            if not namespaced:
                kill_descendants()
            posix._exit(1)  # not a signal: pid 1 is immune to its own

    posix.set_blocking(status, False)
    _signal.signal(_signal.SIGIO, look)
    fcntl.fcntl(status, fcntl.F_SETOWN, posix.getpid())
    fcntl.fcntl(status, fcntl.F_SETFL, fcntl.fcntl(status, fcntl.F_GETFL) | fcntl.FASYNC)
    look()  # it may have closed before SIGIO was set up


def kill_descendants() -> None:
    """Kill and reap until this process has no child.

    Only children are killed: their pids cannot be another's before they are reaped here. When one
    ends, its own children become ours (PR_SET_CHILD_SUBREAPER), in whatever session they are and
    whatever environment they have.
    """
    while True:
        try:
            if posix.waitpid(-1, posix.WNOHANG)[0]:
                continue  # one ended, and left us its children
        except ChildProcessError:
            return
        for pid in children():
            posix.kill(pid, _signal.SIGKILL)
        posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOWAIT)  # wait, and reap above


def children() -> list[int]:
    """Return the pids of this process's children, ended ones included."""
    own, found = posix.getpid(), []
    for name in posix.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # after the name in brackets, which may have brackets: state, parent, …
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:  # it ended, and was not ours
                continue
            if parent == own:
                found.append(int(name))
    return found


def read_command(handle: int) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return arguments and environment, and close the file: the command must not inherit it."""
    words = posix.pread(handle, posix.fstat(handle).st_size, 0).split(b"\0")
    posix.close(handle)
    end = 1 + int(words[0])
    pairs = [word.partition(b"=") for word in words[end:]]
    return words[1:end], {name: value for name, _, value in pairs}


def main() -> None:
    """Start the command in a child and reap until it ends."""
    status, handle, listens, namespaced = (int(word) for word in sys.argv[1:])
    # Python's own handler ends it. Without a handler pid 1 ignores what its commands send.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    announce(status, listens=bool(listens))
    prepare(namespaced=bool(namespaced))
    if posix.read(status, 1) != b"g":
        posix._exit(1)  # the driver died before it sent a command
    end_with_driver(status, namespaced=bool(namespaced))
    argv, environment = read_command(handle)
    child = posix.fork()
    if child == 0:
        _signal.signal(_signal.SIGIO, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        posix.close(status)
        become(argv, environment)
        return
    # As pid 1 we are also the parent of everything whose parent ended: reap those on the way.
    ended, code = 0, 0
    while ended != child:
        ended, code = posix.wait()
    posix.write(status, str(code).encode())
    if namespaced:
        end_namespace()
    else:
        kill_descendants()
    posix._exit(0)


def end_namespace() -> None:
    """Kill and reap what the command left in our pid namespace.

    The kernel would kill it with us, but what it kills then is not counted among the CPU time of
    the sandbox: only who is waited for is.
    """
    if posix.getpid() != 1:
        return  # a wrapper made no namespace, which the probe reports: these are the host's
    try:
        posix.kill(-1, _signal.SIGKILL)  # not ourselves: pid 1 is spared
        while True:
            posix.wait()
    except OSError:
        return  # there is nobody, or nobody any more


def become(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Turn this process into the command.

    A command ``python -I -S FILE …`` is run by this interpreter, which was started with the same
    flags: a second start would cost as much CPU as the rest of the sandbox.
    """
    if argv[:3] != [b"python", b"-I", b"-S"]:
        replace(argv, environment)
    posix.environ.clear()
    posix.environ.update(environment)
    for name, value in environment.items():  # for its children too: environ is only a dict
        posix.putenv(name, value)
    path, *_ = words = [word.decode("utf-8", "surrogateescape") for word in argv[3:]]
    program = type(sys)("__main__")
    program.__file__ = path
    sys.argv, sys.modules["__main__"] = words, program
    with open(path, "rb") as file:
        text = file.read()
    if path.endswith(".pyc"):
        import marshal

        code = marshal.loads(memoryview(text)[16:])  # behind the header of a .pyc (PEP 552)
    else:
        code = compile(text, path, "exec")
    exec(code, program.__dict__)


def replace(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Execute the program that PATH leads to, as execvp(3) finds it; never returns."""
    failure: OSError = FileNotFoundError(ENOENT, "No such file or directory")
    path = environment.get(b"PATH", b"/usr/bin:/bin")
    places = [b""] if b"/" in argv[0] else [place + b"/" for place in path.split(b":")]
    for place in places if argv[0] else ():
        try:
            posix.execve(place + argv[0], argv, environment)
        except OSError as error:
            if error.errno not in (ENOENT, ENOTDIR):
                failure = error
    posix.write(2, argv[0] + b": " + str(failure.strerror).encode() + b"\n")
    posix._exit(127 if isinstance(failure, FileNotFoundError) else 126)  # as shells do


if __name__ == "__main__":
    main()
