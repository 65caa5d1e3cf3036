"""Names that the other districts may import."""

from __future__ import annotations

from runners.campaigns.replay.run import ReplayResult, replay
from runners.campaigns.replay.shipped import compare_with_recording, find_recording
from runners.campaigns.replay.upgrade import UpgradeReport, compare_version

__all__ = [
    "ReplayResult",
    "UpgradeReport",
    "compare_version",
    "compare_with_recording",
    "find_recording",
    "replay",
]
