"""Find the requirements of an installed package that this Python does not meet.

``python -m launch.requirements [NAME[EXTRA,…]]`` prints them and exits with 3 if there are any.
Indirect requirements count too: a recipe with ``--no-deps`` installs what it lists and no more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from conf.errors import AgentrlError, ExitCode
from launch.preflight import Problem

OWN = "agentrl-campaigns"


class RequirementsError(AgentrlError):
    """The package whose requirements are asked for is not installed."""

    exit_code = ExitCode.PREFLIGHT


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement that is not met."""

    requirement: str
    """For example ``numpy>=1.26,<3``."""
    needed_by: str
    installed: str | None
    """The installed version; None if there is none."""

    def __str__(self) -> str:
        """Return the requirement, who needs it, and what is there."""
        found = f"{self.installed} is" if self.installed else "it is not"
        return f"{self.needed_by} needs {self.requirement}: {found} installed"


def find_unmet(name: str = OWN, extras: Iterable[str] = ()) -> list[Unmet]:
    """Return every unmet requirement of an installed package, direct ones first, each once.

    Raises RequirementsError if the package is not installed: its requirements are not known then.
    """
    if _version(name) is None:
        raise RequirementsError(
            f"{name} is not installed in {sys.executable}, so what it requires is not known: "
            f"install it (pip install -c constraints.txt -e . in a checkout of agentrl)"
        )
    found: dict[tuple[str, str], Unmet] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, frozenset(extras))]
    while waiting:
        package, wanted = waiting.pop(0)
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        for requirement in _requirements(package, wanted):
            version = _version(requirement.name)
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                unmet = Unmet(_shown(requirement), package, version)
                found.setdefault((unmet.requirement, package), unmet)
            if version is not None:
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return list(found.values())


def warn_of_unmet(name: str = OWN) -> list[Problem]:
    """Return a warning for every unmet requirement; other versions than required may still do."""
    try:
        return [Problem(False, str(unmet)) for unmet in find_unmet(name)]
    except RequirementsError as error:
        return [Problem(False, str(error))]


def _requirements(package: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield the requirements that hold here: of the package itself and of the wanted extras."""
    for line in distribution(package).requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # Its installer could not read it either.
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


def _version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _shown(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def main(arguments: list[str]) -> int:
    """Print the unmet requirements; return the exit code."""
    try:
        asked = Requirement(arguments[0] if arguments else OWN)
        unmet = find_unmet(asked.name, asked.extras)
    except (InvalidRequirement, AgentrlError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", ExitCode.USAGE))
    for line in unmet:
        print(line)
    if not unmet:
        print(f"{_shown(asked)}: every requirement is met")
    return int(ExitCode.PREFLIGHT if unmet else ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
