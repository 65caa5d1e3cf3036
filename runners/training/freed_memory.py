"""Give memory that was freed back to the system.

A step's tensors come from the heap where they are below 32 MB, and glibc returns only what lies at
its end. Between steps small blocks are taken that stay there, so a process held 100 MB more after
40 steps than it used, though nothing was kept.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress


def return_freed_memory() -> None:
    """Return what the heap of this process does not use; does nothing where libc cannot."""
    with suppress(OSError, AttributeError):  # musl has no such function
        ctypes.CDLL(None).malloc_trim(0)
