"""Names that the other districts may import."""

from __future__ import annotations

from runners.engines.sglang.launch import make_server_settings
from runners.engines.sglang.workers import WorkerEngine, connect_engine

__all__ = [
    "WorkerEngine",
    "connect_engine",
    "make_server_settings",
]
