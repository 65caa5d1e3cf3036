"""Confine a sandbox's processes: refuse system calls, and limit what they use.

A BPF program (seccomp(2)) refuses system calls that nothing in a sandbox needs. This makes less of
the kernel reachable for hostile code, and keeps the processes of one sandbox out of each other's
memory (with ``launcher.prepare``, which closes /proc); in a grading, one of them is the grader's
own. Refused calls fail with EPERM, sockets of other families than the usual with EAFNOSUPPORT: a
network namespace does not contain AF_VSOCK, which reaches the machine's hypervisor. ``clone3`` and
io_uring fail with ENOSYS, as on an old kernel, so that libraries fall back to calls that a filter
can check: BPF sees the registers only, and these two pass their arguments in memory.

Rlimits hold per process, and a control group limits the number of processes. RLIMIT_NPROC does not
bind the host's root user, and if the driver is root, so is a command's uid 1000 outside its
namespace. Then the pids controller of control groups counts instead. A driver that is not root
cannot make control groups, but RLIMIT_NPROC binds it, and the kernel counts that per user
namespace, so per command.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.local.memory_room import CGROUP, CGROUP2, file_system
from runners.system.processes import PREFIX, is_stale

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""SECCOMP_RET_*; an errno goes into the low 16 bits."""
LOAD_WORD, JUMP_EQUAL, JUMP_GE, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Classic BPF: load a word of seccomp_data, compare it with a constant, return."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32
"""Offsets in struct seccomp_data (little endian)."""
NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW* flags of clone(2)."""
X32 = 0x40000000
"""Bit of system call numbers of the x32 ABI, which reach the same calls by other numbers."""

AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
"""The one protocol of netlink that programs need, to list their interfaces (getifaddrs)."""
REFUSED = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438,
        "kcmp": 312, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "unshare": 272, "setns": 308, "open_tree": 428, "move_mount": 429, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248,
        "request_key": 249, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175,
        "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304, "syslog": 103,
        "swapon": 167, "swapoff": 168, "reboot": 169, "acct": 163, "quotactl": 179,
        "process_madvise": 440, "fanotify_init": 300, "quotactl_fd": 443, "vhangup": 153,
        "lookup_dcookie": 212, "modify_ldt": 154, "iopl": 172, "ioperm": 173,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438,
        "kcmp": 272, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "unshare": 97, "setns": 268, "open_tree": 428, "move_mount": 429, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "keyctl": 219, "add_key": 217,
        "request_key": 218, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105,
        "finit_module": 273, "delete_module": 106, "open_by_handle_at": 265, "syslog": 116,
        "swapon": 224, "swapoff": 225, "reboot": 142, "acct": 89, "quotactl": 60,
        "process_madvise": 440, "fanotify_init": 262, "quotactl_fd": 443, "vhangup": 58,
        "lookup_dcookie": 18,
    },
}  # fmt: skip
MISSING = {"clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}


def build_filter(machine: str) -> bytes:
    """Return the BPF program, an array of ``struct sock_filter``, for a machine of ``REFUSED``."""

    def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("<HBBI", code, then, otherwise, value)

    steps = [
        # First the architecture: int 0x80 in a 64-bit process makes 32-bit calls, whose numbers
        # mean other calls.
        step(LOAD_WORD, ARCHITECTURE),
        step(JUMP_EQUAL, AUDIT_ARCHITECTURE[machine], then=1),
        step(RETURN, KILL),
        step(LOAD_WORD, NUMBER),
    ]
    if machine == "x86_64":
        steps += [step(JUMP_GE, X32, otherwise=1), step(RETURN, ERRNO | ENOSYS)]
    for numbers, error in ((MISSING, ENOSYS), (REFUSED[machine], EPERM)):
        for number in numbers.values():
            steps += [step(JUMP_EQUAL, number, otherwise=1), step(RETURN, ERRNO | error)]
    # Sockets: the usual families; of netlink one protocol, of socketpair(2) AF_UNIX alone.
    steps += [
        step(JUMP_EQUAL, SOCKET[machine], otherwise=9),
        step(LOAD_WORD, FIRST_ARGUMENT),
        step(JUMP_EQUAL, AF_UNIX, then=6),
        step(JUMP_EQUAL, AF_INET, then=5),
        step(JUMP_EQUAL, AF_INET6, then=4),
        step(JUMP_EQUAL, AF_NETLINK, otherwise=2),
        step(LOAD_WORD, THIRD_ARGUMENT),
        step(JUMP_EQUAL, NETLINK_ROUTE, then=1),
        step(RETURN, ERRNO | EAFNOSUPPORT),
        step(RETURN, ALLOW),
        step(JUMP_EQUAL, SOCKETPAIR[machine], otherwise=4),
        step(LOAD_WORD, FIRST_ARGUMENT),
        step(JUMP_EQUAL, AF_UNIX, otherwise=1),
        step(RETURN, ALLOW),
        step(RETURN, ERRNO | EAFNOSUPPORT),
    ]
    # clone is how threads and children start: refused only with a flag for a new namespace.
    steps += [
        step(JUMP_EQUAL, CLONE[machine], otherwise=3),
        step(LOAD_WORD, FIRST_ARGUMENT),
        step(JUMP_SET, NEW_NAMESPACES, otherwise=1),
        step(RETURN, ERRNO | EPERM),
        step(RETURN, ALLOW),
    ]
    return b"".join(steps)


def write_filter(path: Path) -> Path | None:
    """Write the program for bubblewrap and ``unshare_setup.py``; raises OSError.

    None on a machine whose system call numbers are not in ``REFUSED``.
    """
    machine = os.uname().machine
    if machine not in REFUSED:
        return None
    path.write_bytes(build_filter(machine))
    return path


@contextlib.contextmanager
def open_filter(path: Path | None) -> Iterator[int | None]:
    """Yield a descriptor at the program's start, None if there is no program.

    A fresh one each time: two readers of one descriptor would share its position.
    """
    if path is None:
        yield None
        return
    with path.open("rb", buffering=0) as file:
        yield file.fileno()


# --- limits ------------------------------------------------------------------------------------

HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""Version 1 has a hierarchy per controller, version 2 one for all."""

NICE = 10
"""Of what runs in a sandbox, above the driver's own; a capture of a patch has 5 above it."""
RLIMIT_MSGQUEUE = 12
"""POSIX's message queues (``linux/resource.h``); Python's module does not name it."""
QUEUE_BYTES = 100 << 10
"""An eighth of what the host's user has for all sandboxes: a queue of the usual size."""
FIRST_TO_DIE = 1000
"""The largest ``oom_score_adj``."""
KILL_S = 5.0
"""From SIGKILL to an empty group."""


def set_limits(pid: int, settings: LocalSandboxConfig, *, namespaced: bool) -> None:
    """Set the rlimits of a launcher, which its command inherits; raises OSError.

    prlimit(2) from outside: setting them in the child before exec would need ``preexec_fn``, and
    with that the spawn is a slow fork of the driver instead of a vfork.
    """
    wanted = {
        resource.RLIMIT_AS: settings.memory_mb << 20,
        resource.RLIMIT_FSIZE: settings.file_mb << 20,
        resource.RLIMIT_CPU: settings.cpu_s,
        resource.RLIMIT_CORE: 0,
    }
    if namespaced:  # otherwise it would count all processes of this user
        wanted[resource.RLIMIT_NPROC] = settings.processes
        wanted[RLIMIT_MSGQUEUE] = QUEUE_BYTES
    for kind, value in wanted.items():
        hard = resource.prlimit(pid, kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (value, value))


def give_way(pid: int) -> None:
    """Put a launcher and what it starts behind the driver and the captures: for the processor, and
    when memory runs out. Does what it may; commands cannot take it back.
    """
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    # autogroup: where it is on, the kernel shares the processor among sessions, by this number.
    for name, value in (("autogroup", nice), ("oom_score_adj", FIRST_TO_DIE)):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/{name}").write_text(str(value))


class PidsControlGroup:
    """A backend's control group, with one child group per sandbox that limits its processes."""

    def __init__(self, parent: Path, processes: int) -> None:
        self._parent = parent
        self._processes = processes

    @classmethod
    def create(cls, name: str, processes: int) -> PidsControlGroup | None:
        """Make the parent group ``name``; return None where that is not possible."""
        if os.geteuid() != 0:
            return None
        for hierarchy in HIERARCHIES:
            if not _is_hierarchy(Path(hierarchy)):
                continue
            parent = Path(hierarchy) / name
            try:
                parent.mkdir()
            except OSError:
                continue
            with contextlib.suppress(OSError):
                # Version 2 has a controller in a group only if the parent passes it on; version 1
                # has no such file.
                (parent / "cgroup.subtree_control").write_text("+pids")
            groups = cls(parent, processes)
            try:  # a hierarchy without the pids controller has no pids.max
                groups.add("probe")
                groups.remove("probe")
            except OSError:
                groups.close()
                continue
            return groups
        return None

    def add(self, name: str) -> None:
        """Make a sandbox's group; raises OSError."""
        group = self._parent / name
        group.mkdir()
        (group / "pids.max").write_text(str(self._processes))

    def move_process(self, name: str, pid: int) -> None:
        """Move a process into a sandbox's group; all that it starts will be in it. Raises OSError.

        What it has started before stays outside, so this comes before the command.
        """
        (self._parent / name / "cgroup.procs").write_text(str(pid))

    def remove(self, name: str) -> None:
        """Kill what is left in a group, and remove it."""
        _kill_members(self._parent / name)
        with contextlib.suppress(OSError):
            (self._parent / name).rmdir()

    def close(self) -> None:
        """Remove every group that is left."""
        with contextlib.suppress(OSError):
            for group in self._parent.iterdir():
                if group.is_dir():
                    self.remove(group.name)
            self._parent.rmdir()


def remove_stale_groups() -> None:
    """Kill what runs in the groups of backends whose process was killed, and remove the groups.

    A process can clear its environment and so lose its tag, but it cannot leave its group.
    """
    for hierarchy in HIERARCHIES:
        for parent in Path(hierarchy).glob(f"{PREFIX}*"):
            if is_stale(parent.name) and _is_hierarchy(parent.parent):
                PidsControlGroup(parent, 0).close()


def _is_hierarchy(path: Path) -> bool:
    """Return whether control groups are made there: with version 1, ``/sys/fs/cgroup`` is a tmpfs,
    in which directories and files limit nothing.
    """
    return file_system(path) in (CGROUP, CGROUP2)


def _kill_members(group: Path) -> None:
    """Kill until a look finds none: a member may fork between being listed and being killed."""
    until = time.monotonic() + KILL_S
    while (pids := _members(group)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    if pid in _members(group):  # still: the pid was not reused before pidfd_open
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
        time.sleep(0.01)


def _members(group: Path) -> set[int]:
    try:
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    except OSError:  # removed already
        return set()
