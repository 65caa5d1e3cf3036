"""Running another's installer, npm or pip, and saying what came of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from conf.errors import AgentrlError, ExitCode

INSTALL_S = 600.0
"""Hundreds of MB over a slow network."""
SHOWN = 400
"""Characters of an installer's last words."""


class ProgramError(AgentrlError):
    """The agent program is not here, or cannot be had."""

    exit_code = ExitCode.PREFLIGHT


def run_installer(name: str, line: list[str], work: Path, by_hand: str) -> None:
    """Run an installer in ``work``; raises ProgramError, which ends with ``by_hand``."""
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=INSTALL_S, check=False, cwd=work
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(
            f"`{' '.join(line)}` was not over after {INSTALL_S:.0f} s; {by_hand}"
        ) from None
    if done.returncode != 0:
        raise ProgramError(
            f"{name} could not install {line[-1]}: {' '.join(done.stderr.split())[-SHOWN:]}; "
            f"without network: {by_hand}"
        )
