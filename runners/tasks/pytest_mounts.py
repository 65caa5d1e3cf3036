"""pytest for sandboxes whose Python has none: the host's own, mounted read-only.

Only pytest and what it imports is mounted, without metadata, so no plugin loads itself.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from runners.tasks.contract import Task, UnittestIds

SITE = "/opt/agentrl/site"
NEEDED = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")


class PytestMissingError(AgentrlError):
    """Something that sandboxes need is not installed here."""

    exit_code = ExitCode.PREFLIGHT


@cache
def pytest_mounts() -> dict[str, Path]:
    """Return what to mount so that ``python -m pytest`` works with ``pytest_environment``; raises
    ToolboxError.
    """
    mounts = {}
    for name in NEEDED:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise PytestMissingError(
                f"these tasks are graded by pytest, and {name} is not installed: "
                "pip install 'agentrl[swebench]'"
            )
        mounts[f"{SITE}/{name}"] = Path(found.origin).parent
    return mounts


def pytest_environment() -> dict[str, str]:
    """Return the variables with which Python finds the mounts."""
    return {"PYTHONPATH": SITE}


def agent_mounts(task: Task) -> dict[str, Path]:
    """Return what an agent needs to run the task's tests itself; raises ToolboxError."""
    return {} if isinstance(task.grading, UnittestIds) or task.image else pytest_mounts()


def agent_environment(task: Task) -> dict[str, str]:
    """Return the variables that go with ``agent_mounts``."""
    return {} if isinstance(task.grading, UnittestIds) or task.image else pytest_environment()


def filter_mounts(mounts: Mapping[str, Path], image: str | None) -> dict[str, Path]:
    """Return mounts without our pytest where an image has its own."""
    return {
        inside: host
        for inside, host in mounts.items()
        if image is None or not inside.startswith(f"{SITE}/")
    }


def rewrite_paths(text: str, workdir: str, here: str) -> str:
    """Return a script with the repository's path put where it is in this sandbox."""
    if not workdir.strip("/"):
        return text
    return re.sub(rf"(?<![\w./-]){re.escape(workdir)}(?![\w.-])", lambda _: here, text)
