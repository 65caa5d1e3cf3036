"""mini-swe-agent itself: the unmodified PyPI package, of the one version asked for, with what it
needs in one directory.

A directory and no virtual environment: it is mounted elsewhere than where it was made, and the
Python that runs it is the sandbox's. That Python must be the version that pip installed for.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from conf import programs, schema
from runners.cache import building
from runners.harnesses.installing import ProgramError, run_installer

PACKAGE = "mini-swe-agent"
UNDECLARED = ("litellm==1.106.2", "mcp==2.3.0")
"""litellm imports ``mcp`` without asking for it; another litellm may send other requests."""


def ready(config: schema.MiniSweAgentHarness) -> Path:
    """Return its directory; raises ProgramError if it is not there or of another version."""
    directory = programs.mini_swe_agent(config)
    if not directory.is_dir():
        raise ProgramError(
            f"mini-swe-agent {config.version} is not at {directory}: install it with "
            "`agentrl check harness=mini_swe_agent`, or set harness.directory"
        )
    found = version(directory)
    if found != config.version:
        raise ProgramError(
            f"{directory} holds mini-swe-agent {found}, not harness.version={config.version}: set "
            f"harness.version={found}, or another harness.directory"
        )
    return directory


def install(config: schema.MiniSweAgentHarness) -> Path:
    """Return its directory, installing it first if it is not there; raises ProgramError.

    Takes minutes and blocks.
    """
    directory = programs.mini_swe_agent(config)
    if config.directory is None and not directory.exists():
        try:
            with building(directory) as made:
                _pip(config.version, made)
        except OSError as error:
            raise ProgramError(f"cannot install mini-swe-agent in {directory}: {error}") from error
    return ready(config)


def version(directory: Path) -> str:
    """Return which version a directory holds, "none" if none."""
    names = sorted(path.name for path in directory.glob("mini_swe_agent-*.dist-info"))
    return names[-1].split("-")[1].removesuffix(".dist") if names else "none"


def requirements(wanted: str) -> list[str]:
    """Return what pip is asked for."""
    return [*UNDECLARED, f"{PACKAGE}=={wanted}"]


def _pip(wanted: str, target: Path) -> None:
    by_hand = (
        f"run `pip install --target DIR {' '.join(requirements(wanted))}` with the sandbox's "
        "Python, and set harness.directory=DIR"
    )
    if importlib.util.find_spec("pip") is None:
        raise ProgramError(f"pip, which installs mini-swe-agent, is missing: {by_hand}")
    options = ("--quiet", "--disable-pip-version-check")
    line = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    run_installer("pip", [*line, *requirements(wanted)], target, by_hand)
