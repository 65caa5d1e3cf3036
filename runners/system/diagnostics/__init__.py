"""Names that the other districts may import."""

from __future__ import annotations

from runners.system.diagnostics.attempt_progress import AttemptProgress, AttemptWatch
from runners.system.diagnostics.diagnostics import install_diagnostics, newest_diagnoses
from runners.system.diagnostics.sections import format_section
from runners.system.diagnostics.stalls import describe_attempts, seconds_since_turn, watch_stalls

__all__ = [
    "AttemptProgress",
    "AttemptWatch",
    "describe_attempts",
    "format_section",
    "install_diagnostics",
    "newest_diagnoses",
    "seconds_since_turn",
    "watch_stalls",
]
