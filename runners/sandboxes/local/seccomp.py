"""Refuse system calls that nothing in a sandbox needs, by a BPF program (seccomp(2)).

This makes less of the kernel reachable for hostile code, and keeps the processes of one sandbox out
of each other's memory; in a grading, one of them is the grader's own.

Refused calls fail with EPERM. ``clone3`` and io_uring fail with ENOSYS, as on an old kernel, so
that libraries fall back to calls that a filter can check: BPF sees the registers only, and these
two pass their arguments in memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EPERM, ENOSYS = 1, 38
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""SECCOMP_RET_*; an errno goes into the low 16 bits."""
LOAD_WORD, JUMP_EQUAL, JUMP_GE, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Classic BPF: load a word of seccomp_data, compare it with a constant, return."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data (little endian)."""
NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW* flags of clone(2)."""
X32 = 0x40000000
"""Bit of system call numbers of the x32 ABI, which reach the same calls by other numbers."""

AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
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
    # clone is how threads and children start: refused only with a flag for a new namespace.
    steps += [
        step(JUMP_EQUAL, CLONE[machine], otherwise=3),
        step(LOAD_WORD, FIRST_ARGUMENT),
        step(JUMP_SET, NEW_NAMESPACES, otherwise=1),
        step(RETURN, ERRNO | EPERM),
        step(RETURN, ALLOW),
    ]
    return b"".join(steps)


@dataclass(frozen=True, slots=True)
class SeccompFilter:
    """The BPF program as a file, for bubblewrap and ``unshare_setup.py``."""

    path: Path | None
    """None on a machine whose system call numbers are not in ``REFUSED``."""

    @classmethod
    def write(cls, path: Path) -> SeccompFilter:
        """Write this machine's program; raises OSError."""
        machine = os.uname().machine
        if machine not in REFUSED:
            return cls(None)
        path.write_bytes(build_filter(machine))
        return cls(path)

    @contextmanager
    def open(self) -> Iterator[int | None]:
        """Yield a descriptor at the program's start, None if there is no program.

        A fresh one each time: two readers of one descriptor would share its position.
        """
        if self.path is None:
            yield None
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
