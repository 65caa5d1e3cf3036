"""Second stage of the ``unshare`` isolation: mount the inside, enter it, give up root, go on.

Runs as ``python -I -S unshare_setup.py PLAN ARGV…``, as pid 1 of fresh namespaces in which it is
root, on the standard library alone.
"""

# ruff: noqa: PTH103, PTH106, PTH112, PTH114, PTH115, PTH120, PTH211 (pathlib takes 6 ms to import)

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


def bind(source: str, target: str, *, read_only: bool) -> None:
    """Bind a file or directory, making the mount point."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:  # flags that the source's mount has are locked: a remount must repeat them
        held = os.statvfs(target).f_flag
        keep = held & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
        relatime = MS_RELATIME if held & os.ST_RELATIME else 0
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | keep | relatime)


def build(plan: dict) -> None:  # type: ignore[type-arg]
    """Mount the inside on ``plan["root"]``."""
    root, size = plan["root"], f"size={plan['tmp_bytes']},mode=1777"
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for inside, host in plan["read_only"].items():
        if os.path.islink(host):
            os.symlink(os.readlink(host), root + inside)
        else:
            bind(host, root + inside, read_only=True)
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", read_only=False)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    for name in ("/dev/shm", "/tmp"):
        os.makedirs(root + name)
        mount("tmpfs", root + name, "tmpfs", MS_NOSUID | MS_NODEV, size)
    os.makedirs(root + "/proc")
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    workspace, inside = plan["workspace"]
    bind(workspace, root + inside, read_only=False)


def enter(plan: dict) -> None:  # type: ignore[type-arg]
    """Make the new root the only one."""
    os.makedirs(plan["root"] + "/.host")
    os.chdir(plan["root"])
    pivot_root = ctypes.c_long(PIVOT_ROOT[os.uname().machine])
    check(libc.syscall(pivot_root, b".", b".host"), "pivot_root")
    check(libc.umount2(b"/.host", MNT_DETACH), "umount the host")
    os.rmdir("/.host")
    # /proc too: to a driver that is root, the host's kernel settings are files of its own.
    for name, flags in (("/", 0), ("/proc", MS_NOEXEC)):
        mount("", name, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | flags)
    os.chdir(plan["workspace"][1])


def raise_loopback() -> None:
    """Bring the namespace's own loopback up."""
    handle = socket(AF_INET, SOCK_DGRAM)
    request = struct.pack("16sh14x", b"lo", 0)
    flags = struct.unpack("16sh14x", fcntl.ioctl(handle, SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    handle.close()


def give_up_root(process: int) -> None:
    """Become an ordinary user in a nested user namespace, which owns none of these mounts.

    ``process`` is /proc/self, opened where it can still be written.
    """
    check(libc.unshare(CLONE_NEWUSER), "unshare user")
    mapping = f"{AGENT_ID} 0 1"
    for name, text in (("setgroups", "deny"), ("uid_map", mapping), ("gid_map", mapping)):
        file = os.open(name, os.O_WRONLY, dir_fd=process)
        os.write(file, text.encode())
        os.close(file)
    os.close(process)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def tell_pid(descriptor: int) -> None:
    """Tell the host our pid, as it is there and in what is still the host's /proc."""
    os.write(descriptor, b'{"child-pid": %s}\n' % os.readlink("/proc/self").encode())
    os.close(descriptor)


def refuse(descriptor: int) -> None:
    """Load the seccomp program."""
    steps = os.read(descriptor, 1 << 16)
    os.close(descriptor)
    buffer = ctypes.create_string_buffer(steps, len(steps))
    header = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def main() -> None:
    """Set up, then become ARGV."""
    plan = json.loads(sys.argv[1])
    tell_pid(plan["tell"])
    process = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    build(plan)
    raise_loopback()
    enter(plan)
    give_up_root(process)
    if plan["deny"] is not None:
        refuse(plan["deny"])
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
