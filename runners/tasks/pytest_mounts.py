"""pytest for sandboxes whose Python has none: the host's own, mounted read-only.

Only pytest and its imports are mounted, without package metadata, so no plugin loads by itself.
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
    """A package that sandboxes need from the host is not installed."""

    exit_code = ExitCode.PREFLIGHT


@cache
def pytest_mounts() -> dict[str, Path]:
    """Return the mounts with which ``python -m pytest`` works, given ``pytest_environment``.

    Raises PytestMissingError.
    """
    mounts = {}
    for name in NEEDED:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise PytestMissingError(
                f"these tasks are graded by pytest, and {name} is not installed: "
                "pip install 'agentrl-campaigns[swebench]'"
            )
        mounts[f"{SITE}/{name}"] = Path(found.origin).parent
    return mounts


def pytest_environment() -> dict[str, str]:
    """Return the variables by which Python finds the mounts."""
    return {"PYTHONPATH": SITE}


def plugin_environment(image: str | None) -> dict[str, str]:
    """Return the variables by which a grading's pytest loads no plugin of the work tree.

    An image's pytest may need the plugins that are installed in it, so there pytest goes on loading
    what is installed; ``protection.py`` leaves out what a patch would install.
    """
    return {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if image is None else {}


def agent_mounts(task: Task) -> dict[str, Path]:
    """Return the mounts an agent needs to run the task's tests; raises PytestMissingError."""
    return {} if isinstance(task.grading, UnittestIds) or task.image else pytest_mounts()


def agent_environment(task: Task) -> dict[str, str]:
    """Return the variables that go with ``agent_mounts``."""
    return {} if isinstance(task.grading, UnittestIds) or task.image else pytest_environment()


def filter_mounts(mounts: Mapping[str, Path], image: str | None) -> dict[str, Path]:
    """Return the mounts, without our pytest if an image has its own."""
    return {
        inside: host
        for inside, host in mounts.items()
        if image is None or not inside.startswith(f"{SITE}/")
    }


def rewrite_paths(text: str, workdir: str, sandbox_workdir: str) -> str:
    """Return a script with the repository's path replaced by its path in this sandbox.

    >>> rewrite_paths("cd /testbed && ls /testbed2", "/testbed", "/workspace")
    'cd /workspace && ls /testbed2'
    """
    if not workdir.strip("/"):
        return text
    return re.sub(rf"(?<![\w./-]){re.escape(workdir)}(?![\w.-])", lambda _: sandbox_workdir, text)
