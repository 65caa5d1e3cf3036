"""Names that the other districts may import."""

from __future__ import annotations

from runners.campaigns.preflight.agent_turn import AgentTurn
from runners.campaigns.preflight.run_check import EngineReport, check_run, install_programs
from runners.campaigns.preflight.start_check import find_device_errors, refuse

__all__ = [
    "AgentTurn",
    "EngineReport",
    "check_run",
    "find_device_errors",
    "install_programs",
    "refuse",
]
