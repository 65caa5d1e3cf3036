"""Claude Code itself: the unmodified program of the npm package, of the one version asked for.

``harness.binary`` wins, a program or a tarball; else it lies in the user's cache, where ``install``
puts it. What stands in the cache is complete and of the right version: it is made beside its place
and renamed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from conf import programs, schema
from conf.errors import AgentrlError, ExitCode
from runners.cache import building

PACKAGE = "@anthropic-ai/claude-code"
INSTALL_S = 600.0
"""100 MB over a slow network."""
VERSION_S = 30.0
LEAST_BYTES = 1 << 20
"""A smaller ``claude.exe`` is npm's placeholder for the program."""


class ProgramError(AgentrlError):
    """The agent program is not here, or cannot be had."""

    exit_code = ExitCode.PREFLIGHT


def ready(config: schema.ClaudeCodeHarness) -> Path:
    """Return the program's path; raises ProgramError if it is not there or of another version."""
    path = programs.claude_code(config)
    if not path.is_file():
        raise ProgramError(
            f"Claude Code {config.version} is not at {path}: install it with "
            "`agentrl check harness=claude_code`, or set harness.binary"
        )
    found = version(path)
    if found != config.version:
        raise ProgramError(
            f"{path} is Claude Code {found}, not harness.version={config.version}: set "
            f"harness.version={found}, or another harness.binary"
        )
    return path


def install(config: schema.ClaudeCodeHarness) -> Path:
    """Return the program's path, installing it first if it is not there; raises ProgramError.

    Takes seconds to minutes and blocks.
    """
    path = programs.claude_code(config)
    if path != config.binary and not path.exists():
        try:
            _install(config, path)
        except (OSError, tarfile.TarError) as error:
            raise ProgramError(f"cannot install Claude Code in {path.parent}: {error}") from error
    return ready(config)


def version(path: Path) -> str:
    """Return what the program says its version is; raises ProgramError if it does not run."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ProgramError(f"harness.binary={path} does not run: {error}") from error
    return said.partition(" ")[0].strip()


def _install(config: schema.ClaudeCodeHarness, path: Path) -> None:
    with building(path.parent) as made:
        program = made / path.name
        if config.binary is not None:
            _unpack(config, config.binary, program)
        else:
            work = made / "npm"
            work.mkdir()
            _npm(config.version, work).rename(program)
            shutil.rmtree(work)
        program.chmod(0o755)
        ready(config.model_copy(update={"binary": program}))


def _unpack(config: schema.ClaudeCodeHarness, tarball: Path, target: Path) -> None:
    """Take the program out of an npm tarball."""
    try:
        with tarfile.open(tarball) as archive:
            for member in archive:
                named = member.name in ("package/claude", "package/bin/claude.exe")
                content = archive.extractfile(member) if named and member.isfile() else None
                if content is not None and member.size >= LEAST_BYTES:
                    with target.open("wb") as file:
                        shutil.copyfileobj(content, file)
                    return
    except (OSError, tarfile.TarError) as error:
        raise ProgramError(f"harness.binary={tarball} cannot be read: {error}") from error
    raise ProgramError(f"harness.binary={tarball} holds no program; {_by_hand(config.version)}")


def _npm(wanted: str, work: Path) -> Path:
    """Install the package with npm; return the program, which its scripts do not have to place."""
    npm = shutil.which("npm")
    if npm is None:
        raise ProgramError(
            "npm, which installs Claude Code, is missing: install it (apt-get install npm); "
            f"without it: {_by_hand(wanted)}"
        )
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    line = [npm, "install", "--prefix", str(work), *options, f"{PACKAGE}@{wanted}"]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=INSTALL_S, check=False, cwd=work
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(
            f"`{' '.join(line)}` was not over after {INSTALL_S:.0f} s; {_by_hand(wanted)}"
        ) from None
    if done.returncode != 0:
        raise ProgramError(
            f"npm could not install {PACKAGE}@{wanted}: {' '.join(done.stderr.split())[-400:]}; "
            f"without network: {_by_hand(wanted)}"
        )
    scope = work / "node_modules" / PACKAGE.partition("/")[0]
    names = [*scope.glob("claude-code-*/claude"), *scope.glob("claude-code/bin/claude.exe")]
    for name in names:
        if name.stat().st_size >= LEAST_BYTES:
            return name
    raise ProgramError(f"{PACKAGE}@{wanted} has no program for this machine; {_by_hand(wanted)}")


def _by_hand(wanted: str) -> str:
    platform = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    return (
        f"where there is a network, run `npm pack {PACKAGE}-linux-{platform}@{wanted}`, and set "
        "harness.binary to the file that it makes"
    )
