"""Targets of plug-ins: how they are written, what they stand for, and their version.

A target is ``package.module:Name`` (importable) or ``FILE.py:Name``. Nothing is imported here: a
configuration may be read where its plug-ins are not installed.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from conf.suggestions import suggest

FORM = "package.module:Name or FILE.py:Name"
_TARGET = re.compile(r"(?P<place>.+):(?P<name>[A-Za-z_]\w*)")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@cache
def plugin_names(seam: str) -> dict[str, str]:
    """Return the plug-ins that installed packages offer: targets by name.

    ``seam``: a group of entry points without its prefix, e.g. ``rewards`` for ``agentrl.rewards``.
    """
    return {point.name: _write_target(point) for point in entry_points(group=f"agentrl.{seam}")}


def _write_target(point: EntryPoint) -> str:
    return f"{point.module}:{point.attr}"


def split_target(target: str) -> tuple[str, str]:
    """Return a target's module or file, and the name in it; raises ValueError.

    >>> split_target("my_rewards.short:Brief")
    ('my_rewards.short', 'Brief')
    """
    found = _TARGET.fullmatch(target)
    if found is None or not (is_file(found["place"]) or _MODULE.fullmatch(found["place"])):
        raise ValueError(f"must be {FORM}")
    return found["place"], found["name"]


def is_file(place: str) -> bool:
    """Return whether the first part of a target is a file, not a module."""
    return place.endswith(".py")


def complete_target(target: str) -> str:
    """Return a target with the absolute path of its file; raises ValueError."""
    place, name = split_target(target)
    return f"{os.path.abspath(place)}:{name}" if is_file(place) else target  # noqa: PTH100 (no links)


def find_version(target: str) -> str | None:
    """Return the version of the code that a target names: its package's, and a digest of its file.

    None if it is not on this machine. Of a package only the file that the target names is part of
    the digest.
    """
    try:
        place, _ = split_target(target)
    except ValueError:
        return None
    file = Path(place) if is_file(place) else _find_module(place)
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file else ""
    except OSError:
        return None
    words = [] if is_file(place) else [_find_package(place.partition(".")[0])]
    words += [f"sha256:{digest}"] if digest else []
    return ", ".join(filter(None, words)) or None


def _find_module(module: str) -> Path | None:
    """Return a module's file without importing its package; None if there is none."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.has_location else None
    for folder in spec.submodule_search_locations or ():
        base = Path(folder, *rest)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


def _find_package(top: str) -> str:
    """Return name and version of the package that has a module, "" if it is of none."""
    names = _distributions().get(top, [])
    return f"{names[0]} {version(names[0])}" if names else ""


@cache
def _distributions() -> dict[str, list[str]]:
    return {top: list(names) for top, names in packages_distributions().items()}


def find_target(given: str, seam: str, known: tuple[str, ...] = ()) -> str:
    """Return the target that a name or a target stands for.

    ``known``: names that are built in. Raises ValueError for a name that nobody offers.
    """
    if ":" in given:
        return given
    offered = plugin_names(seam)
    if given in offered:
        return offered[given]
    names = [*known, *sorted(offered.keys() - set(known))]
    hint = suggest(given, names, "did you mean {}? ")
    choices = f"(names: {', '.join(names)}; your own: {FORM})" if names else f"(write {FORM})"
    raise ValueError(f"is not known: {hint}{choices}")
