"""mini-swe-agent itself: the unmodified PyPI package, of the one version asked for, with what it
needs in one directory.

A directory and no virtual environment: it is mounted elsewhere than where it was made, and the
Python that runs it is the sandbox's. That Python must be the version that pip installed for. What
it needs is listed whole in ``requirements.txt``, so that nothing is resolved anew.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conf import programs
from conf.sections.harness import MiniSweAgentHarnessConfig
from runners.harnesses.events import events, tail
from runners.harnesses.installing import SHOWN, ProgramError, run_installer
from runners.harnesses.mini_swe_agent.result import CODES
from runners.harnesses.mini_swe_agent.settings import ENVIRONMENT, KEY, command, settings
from runners.processes.atomic_write import atomic_directory

PACKAGE = "mini-swe-agent"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
STARTER = Path(__file__).with_name("start.py")
START_S = 120.0
NOWHERE = "http://127.0.0.1:1"
"""Nobody answers there, and to be told so takes no time."""


def ready(config: MiniSweAgentHarnessConfig) -> Path:
    """Return its directory; raises ProgramError if it is not there or of another version."""
    directory = programs.mini_swe_agent_path(config)
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


def install(config: MiniSweAgentHarnessConfig) -> Path:
    """Return its directory, installing it first if it is not there; raises ProgramError.

    Takes most of a minute and blocks.
    """
    directory = programs.mini_swe_agent_path(config)
    if config.directory is None and not directory.exists():
        try:
            with atomic_directory(directory) as made:
                _pip(config.version, made)
                _start_once(config, made)
        except OSError as error:
            raise ProgramError(f"cannot install mini-swe-agent in {directory}: {error}") from error
    return ready(config)


def version(directory: Path) -> str:
    """Return which version a directory holds, "none" if none."""
    names = sorted(path.name for path in directory.glob("mini_swe_agent-*.dist-info"))
    return names[-1].split("-")[1].removesuffix(".dist") if names else "none"


def _by_hand(wanted: str) -> str:
    return (
        f"run `pip install --target DIR --no-deps -r {REQUIREMENTS} {PACKAGE}=={wanted}` with the "
        "sandbox's Python, and set harness.directory=DIR"
    )


def _pip(wanted: str, target: Path) -> None:
    by_hand = _by_hand(wanted)
    if importlib.util.find_spec("pip") is None:
        raise ProgramError(f"pip, which installs mini-swe-agent, is missing: {by_hand}")
    options = ("--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")
    line = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    line += ["-r", str(REQUIREMENTS), f"{PACKAGE}=={wanted}"]
    run_installer("pip", line, target, by_hand)


def _start_once(config: MiniSweAgentHarnessConfig, directory: Path) -> None:
    """Start it without a gateway: all that it imports must be there, and is compiled by that, which
    in the sandbox, where it is mounted read-only, every start would do again. It ends with a word
    of its own.
    """
    chosen = settings(config, url=NOWHERE, model="policy", workdir=str(directory))
    line = command(str(STARTER), chosen, packages=str(directory))
    once = {"MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1", KEY: "none"}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
                [sys.executable, *line[1:]],
                input=b"Nothing.",
                capture_output=True,
                timeout=START_S,
                check=False,
                env={**os.environ, **ENVIRONMENT, **once, "MSWEA_GLOBAL_CONFIG_DIR": scratch},
            )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{PACKAGE} did not start within {START_S:.0f} s") from None
    ended = [event for event in events(done.stdout) if "exit_status" in event]
    if not ended or ended[-1]["exit_status"] not in CODES:
        complaint = ended[-1]["error"] if ended else tail(done.stderr)[-SHOWN:]
        raise ProgramError(
            f"{PACKAGE} {config.version} does not start with what {REQUIREMENTS} lists: "
            f"{' '.join(complaint.split())[:SHOWN]}; {_by_hand(config.version)}"
        )
