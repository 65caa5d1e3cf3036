"""Names that the other districts may import."""

from __future__ import annotations

from runners.sandboxes.remote.archive import ArchiveWriter, unpack
from runners.sandboxes.remote.provided import MachineProvider, MachineRequest

__all__ = [
    "ArchiveWriter",
    "MachineProvider",
    "MachineRequest",
    "unpack",
]
