"""The mini-swe-agent package: the unmodified PyPI release, of exactly the configured version.

It is a directory, not a virtual environment: it is mounted at another path than the one it was made
at, and the sandbox's Python runs it. That Python must be the version that pip installed for.
``requirements.txt`` pins every dependency, so nothing is resolved anew.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conf.programs import program_path
from conf.sections.harness import MiniSweAgentHarnessConfig
from runners.rollouts.harnesses.external_program import join_tails, read_events
from runners.rollouts.harnesses.installation import MESSAGE_LIMIT, ProgramError, run_installer
from runners.rollouts.harnesses.mini_swe_agent.harness import (
    CODES,
    ENVIRONMENT,
    KEY,
    START,
    build_command,
    build_settings,
)
from runners.system.processes import atomic_directory

PACKAGE = "mini-swe-agent"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
START_S = 120.0
CLOSED_PORT = "http://127.0.0.1:1"
"""Nothing listens there, and the system refuses the connection at once."""


def find_package(config: MiniSweAgentHarnessConfig) -> Path:
    """Return its directory; raises ProgramError if it is missing or of another version."""
    directory = program_path(config)
    if not directory.is_dir():
        raise ProgramError(
            f"mini-swe-agent {config.version} is not at {directory}: install it with "
            "`agentrl check harness=mini_swe_agent`, or set harness.directory"
        )
    version = read_version(directory)
    if version != config.version:
        raise ProgramError(
            f"{directory} holds mini-swe-agent {version}, not harness.version={config.version}: "
            f"set harness.version={version}, or another harness.directory"
        )
    return directory


def install_package(config: MiniSweAgentHarnessConfig) -> Path:
    """Return its directory, installing it first if it is missing; raises ProgramError.

    Takes most of a minute and blocks.
    """
    directory = program_path(config)
    if config.directory is None and not directory.exists():
        try:
            with atomic_directory(directory) as target:
                _run_pip(config.version, target)
                _start_once(config, target)
        except OSError as error:
            raise ProgramError(f"cannot install mini-swe-agent in {directory}: {error}") from error
    return find_package(config)


def read_version(directory: Path) -> str:
    """Return the version that a directory holds, "none" if none."""
    names = sorted(path.name for path in directory.glob("mini_swe_agent-*.dist-info"))
    return names[-1].split("-")[1].removesuffix(".dist") if names else "none"


def _manual_hint(version: str) -> str:
    return (
        f"run `pip install --target DIR --no-deps -r {REQUIREMENTS} {PACKAGE}=={version}` with the "
        "sandbox's Python, and set harness.directory=DIR"
    )


def _run_pip(version: str, target: Path) -> None:
    hint = _manual_hint(version)
    if importlib.util.find_spec("pip") is None:
        raise ProgramError(f"pip, which installs mini-swe-agent, is missing: {hint}")
    options = ("--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")
    argv = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    argv += ["-r", str(REQUIREMENTS), f"{PACKAGE}=={version}"]
    run_installer("pip", argv, target, hint)


def _start_once(config: MiniSweAgentHarnessConfig, directory: Path) -> None:
    """Start it without a gateway; raises ProgramError unless it ends as if the gateway was gone.

    This shows that every import is there. It also compiles them: in the sandbox, where the
    directory is read-only, every start would compile them again.
    """
    settings = build_settings(config, url=CLOSED_PORT, model="policy", workdir=str(directory))
    argv = build_command(str(START), settings, packages=str(directory))
    env = {**os.environ, **ENVIRONMENT, KEY: "none", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
                [sys.executable, *argv[1:]],
                input=b"Nothing.",
                capture_output=True,
                timeout=START_S,
                check=False,
                env={**env, "MSWEA_GLOBAL_CONFIG_DIR": scratch},
            )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{PACKAGE} did not start within {START_S:.0f} s") from None
    ends = [event for event in read_events(done.stdout) if "exit_status" in event]
    if not ends or ends[-1]["exit_status"] not in CODES:
        message = ends[-1]["error"] if ends else join_tails(done.stderr)[-MESSAGE_LIMIT:]
        raise ProgramError(
            f"{PACKAGE} {config.version} does not start with what {REQUIREMENTS} lists: "
            f"{' '.join(message.split())[:MESSAGE_LIMIT]}; {_manual_hint(config.version)}"
        )
