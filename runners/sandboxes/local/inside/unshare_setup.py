"""Set up the ``unshare`` isolation from inside: mount the file system, enter it, give up root.

Runs as ``python -I -S unshare_setup.py PLAN ARGV…``, as pid 1 of fresh namespaces in which it is
root, and then becomes ARGV. It uses the standard library alone.

The order matters. The pid is reported while /proc is still the host's. /proc/self is opened before
the new root becomes read-only. The loopback is raised while we are root of the network namespace.
Root is given up after the last mount, and the seccomp program, which refuses mount and unshare,
comes last.
"""

# ruff: noqa: PTH103, PTH106, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211 (pathlib takes 6 ms to import)

import ctypes
import fcntl
import json
import os
import struct
import sys
from _socket import AF_INET, SOCK_DGRAM, socket

AGENT_ID = 1000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
MS_NOEXEC, MS_PRIVATE, MS_RELATIME = 8, 1 << 18, 1 << 21
MNT_DETACH = 2
CLONE_NEWUSER = 0x10000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Exit with the C library's error if a call failed."""
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Attach a file system."""
    words = [word.encode() or None for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def bind(source: str, target: str) -> None:
    """Bind a file or directory with all that is mounted below it, making the mount point."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, flags=MS_BIND | MS_REC)


def make_read_only(root: str) -> None:
    """Make every mount below ``root`` read-only, those included that came along with a bind.

    MS_BIND ignores MS_RDONLY and a remount does not descend, so it takes a call for each. In a user
    namespace the flags of a mount that came from outside are locked: a remount that drops one fails
    with EPERM.
    """
    with open("/proc/self/mountinfo", "rb") as file:
        words = [line.split(b" ")[4] for line in file]
    for word in words:  # blanks and backslashes are octal there
        target = os.fsdecode(word.decode("unicode_escape").encode("latin-1"))
        if not target.startswith(f"{root}/"):
            continue
        try:
            held = os.statvfs(target).f_flag
        except PermissionError:  # another user's FUSE: out of the agent's reach too
            continue
        keep = held & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
        relatime = MS_RELATIME if held & os.ST_RELATIME else 0
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | keep | relatime)


def build(plan: dict) -> None:  # type: ignore[type-arg]
    """Mount the sandbox's file system on ``plan["root"]``."""
    root, size = plan["root"], f"size={plan['tmp_bytes']},mode=1777"
    # Private first: with shared propagation, what is mounted here would appear on the host.
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for inside, host in plan["read_only"].items():
        if os.path.islink(host):
            os.symlink(os.readlink(host), root + inside)
        else:
            bind(host, root + inside)
    make_read_only(root)
    for name in DEVICES:  # binds: a user namespace may not make device nodes
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    for name in ("/dev/shm", "/tmp"):
        os.makedirs(root + name)
        mount("tmpfs", root + name, "tmpfs", MS_NOSUID | MS_NODEV, size)
    os.makedirs(root + "/proc")
    # A new one for this pid namespace. The kernel allows that only while a complete /proc is still
    # mounted here, so before the host's is gone.
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for host, inside in plan["writable"]:
        bind(host, root + inside)


def enter(plan: dict) -> None:  # type: ignore[type-arg]
    """Make the new root the only one, and read-only.

    pivot_root(2), not chroot: after it the host's tree can be unmounted, and is out of reach even
    for root inside.
    """
    os.makedirs(plan["root"] + "/.host")
    os.chdir(plan["root"])
    pivot_root = ctypes.c_long(PIVOT_ROOT[os.uname().machine])
    check(libc.syscall(pivot_root, b".", b".host"), "pivot_root")
    # Detached: the interpreter that runs this still has files of the host open.
    check(libc.umount2(b"/.host", MNT_DETACH), "umount the host")
    os.rmdir("/.host")
    # The root is a tmpfs that a command could fill. /proc too: if the driver is root, the host's
    # kernel settings (/proc/sys) are files that its uid owns.
    for name, flags in (("/", 0), ("/proc", MS_NOEXEC)):
        mount("", name, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | flags)
    os.chdir(plan["workdir"])


def limit_shares(shares: dict) -> None:  # type: ignore[type-arg]
    """Limit what the kernel counts per namespace (``shares.py``); the host's /proc is still here.

    What this kernel does not let us write stays as it is: the probe tells.
    """
    for path, value in shares.items():
        try:
            file = os.open(path, os.O_WRONLY)
            os.write(file, str(value).encode())
            os.close(file)
        except OSError:
            continue


def raise_loopback() -> None:
    """Bring up the loopback of the new network namespace: it is down, and there is no ``ip``."""
    handle = socket(AF_INET, SOCK_DGRAM)
    request = struct.pack("16sh14x", b"lo", 0)
    flags = struct.unpack("16sh14x", fcntl.ioctl(handle, SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    handle.close()


def give_up_root(process: int) -> None:
    """Become an ordinary user in a nested user namespace, which owns none of these mounts.

    setuid would not do: the outer user namespace maps one id only, root. ``process`` is /proc/self,
    opened while it could still be written.
    """
    check(libc.unshare(CLONE_NEWUSER), "unshare user")
    mapping = f"{AGENT_ID} 0 1"
    # setgroups first: without privileges outside, the kernel refuses gid_map until it is denied.
    for name, text in (("setgroups", "deny"), ("uid_map", mapping), ("gid_map", mapping)):
        file = os.open(name, os.O_WRONLY, dir_fd=process)
        os.write(file, text.encode())
        os.close(file)
    os.close(process)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def report_pid(descriptor: int) -> None:
    """Report our pid on the host: the /proc mounted here is still the host's."""
    os.write(descriptor, b'{"child-pid": %s}\n' % os.readlink("/proc/self").encode())
    os.close(descriptor)


def load_seccomp(descriptor: int) -> None:
    """Load the seccomp program; needs no privileges, since no_new_privs is set."""
    steps = os.read(descriptor, 1 << 16)
    os.close(descriptor)
    buffer = ctypes.create_string_buffer(steps, len(steps))
    # struct sock_fprog: the number of instructions of 8 bytes, and their address.
    header = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def main() -> None:
    """Set up, then become ARGV."""
    plan = json.loads(sys.argv[1])
    report_pid(plan["pid_fd"])
    limit_shares(plan["shares"])
    process = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    build(plan)
    raise_loopback()
    enter(plan)
    give_up_root(process)
    if plan["seccomp_fd"] is not None:
        load_seccomp(plan["seccomp_fd"])
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
