"""Protected paths: the parts of a work tree that decide the tests, so an agent may not change them.

Protected are the task's own paths (the tests), whatever configures pytest, and whatever Python
would import instead of a test, of pytest or of its own library. A patch leaves these paths out and
names them; grading restores them, whoever made the patch. Configuration that the reference patch
changes is not protected.
"""

from __future__ import annotations

import configparser
import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from runners.tasks.contract import Task, UnittestIds
from runners.tasks.diffs import read_paths

FILE_LIMIT = 8 << 20
"""Bytes; a larger changed file is refused before git reads it."""
PLUGINS = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py"})
"""Files that pytest or Python runs without being asked to."""
SETTINGS = frozenset({"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
SHARED: dict[str, tuple[str, ...]] = {
    "tox.ini": ("pytest",),
    "setup.cfg": ("tool:pytest",),
    "pyproject.toml": ("tool", "pytest"),
}
"""Files of which pytest reads one part: INI sections, or the path of a TOML table."""
PLUGIN = "agentrl_report"
"""Our pytest plugin."""
TOOLS = frozenset(
    {
        *(PLUGIN, "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"),
        # parts and dependencies of the pytest that an image may have, from 3.6 on
        *("atomicwrites", "attr", "attrs", "exceptiongroup", "funcsigs", "importlib_metadata"),
        *("more_itertools", "pathlib2", "pkg_resources", "pyparsing", "setuptools", "six", "toml"),
        *("tomli", "typing_extensions", "wcwidth", "zipp"),
        *("asynchat", "asyncore", "distutils", "imp", "smtpd"),  # in Python until 3.11
    }
)
"""Modules that ``python -m pytest`` imports from the work tree first, before our plugin runs."""
SKIPPED = frozenset({".git", "__pycache__"})


def find_tampered(task: Task, workspace: Path) -> tuple[str, ...]:
    """Return the protected paths that were changed or added, sorted."""
    others = set(_shadows(task, workspace))
    if not isinstance(task.grading, UnittestIds):  # unittest reads none of these
        others |= set(_configuration(task, workspace))
    free = read_paths(task.gold_patch).all
    return tuple(sorted({*_tests(task, workspace), *(others - free)}))


def escape_path(path: str) -> str:
    """Return a path as text that can be stored: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def walk_entries(root: str, relative: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield every entry below ``root`` except the top ``.git``, Python's caches and the contents of
    nested ``.git`` directories; makes directories readable on the way.
    """
    os.chmod(root, os.stat(root).st_mode | stat.S_IRWXU)  # noqa: PTH101, PTH116
    with os.scandir(root) as found:
        for entry in found:
            path = f"{relative}/{entry.name}" if relative else entry.name
            if path == ".git" or entry.name == "__pycache__":
                continue
            yield path, entry
            if entry.is_dir(follow_symlinks=False) and entry.name.lower() != ".git":
                yield from walk_entries(entry.path, path)


def _tests(task: Task, workspace: Path) -> Iterator[str]:
    for protected in task.protected:
        before = dict(_contents(task.repo, protected.rstrip("/")))
        after = dict(_contents(workspace, protected.rstrip("/")))
        yield from (path for path in before.keys() | after if before.get(path) != after.get(path))


def _configuration(task: Task, workspace: Path) -> Iterator[str]:
    """Yield the changed paths that configure pytest or run unasked."""
    places = {path for path, entry in walk_entries(str(workspace)) if _configures(entry.name)}
    for folder, directories, files in os.walk(task.repo):
        directories[:] = [name for name in directories if name not in SKIPPED]
        inside = os.path.relpath(folder, task.repo).removeprefix(".")
        places |= {os.path.join(inside, name) for name in files if _configures(name)}  # noqa: PTH118
    for path in places:
        before, after = (dict(_contents(root, path)) for root in (task.repo, workspace))
        if before == after:
            continue
        name = path.rpartition("/")[2]
        if name not in SHARED or _section(task.repo / path) != _section(workspace / path):
            yield path


def _configures(name: str) -> bool:
    return name in PLUGINS or name in SETTINGS or name in SHARED


def _section(path: Path) -> object:
    """Return pytest's part of a shared file, None if it has none.

    An unreadable file gives a new object, which equals nothing: it counts as changed.
    """
    if not os.path.lexists(path):
        return None
    if path.is_symlink() or not path.is_file() or path.stat().st_size > FILE_LIMIT:
        return object()
    sections = SHARED[path.name]
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text).get(sections[0], {}).get(sections[1])
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        return {name: dict(parser[name]) for name in sections if parser.has_section(name)} or None
    except (OSError, ValueError, AttributeError, configparser.Error):
        return object()


def _shadows(task: Task, workspace: Path) -> Iterator[str]:
    """Yield new paths that Python would import instead of a test, a tool or its own library."""
    taken = sys.stdlib_module_names | TOOLS
    for name in _importable(workspace):
        if name.partition(".")[0] in taken and not os.path.lexists(task.repo / name):
            yield name
    for protected in task.protected:
        folder = ""
        for part in protected.rstrip("/").split("/"):
            if (workspace / folder).is_symlink():
                break
            for name in _importable(workspace / folder):
                path = f"{folder}{name}"
                alike = name != part and name.partition(".")[0] == part.partition(".")[0]
                if alike and not os.path.lexists(task.repo / path):
                    yield path
            folder += f"{part}/"


def _importable(folder: Path) -> list[str]:
    """Return the names in a directory that ``import`` considers."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        return [
            entry.name
            for entry in found
            if entry.name.endswith((".py", ".pyc", ".so")) or entry.is_dir(follow_symlinks=True)
        ]


def _contents(root: Path, relative: str) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yield path → (kind and mode, content) of everything at a path; follows no link."""
    if _parent_is_no_directory(root, relative):
        return
    path = root / relative
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        yield relative, ("link", os.fsencode(path.readlink()))
    elif stat.S_ISREG(mode):
        executable = "x" if mode & stat.S_IXUSR else "-"
        small = path.stat().st_size <= FILE_LIMIT
        yield relative, (f"file{executable}", path.read_bytes() if small else b"too large")
    elif stat.S_ISDIR(mode):
        for name in sorted(os.listdir(path)):  # noqa: PTH208 (names, not paths)
            if name not in SKIPPED and not name.endswith(".pyc"):
                yield from _contents(root, f"{relative}/{name}")
    else:
        yield relative, ("special", b"")


def _parent_is_no_directory(root: Path, relative: str) -> bool:
    """Return whether a parent of a path is not a directory of this tree."""
    at = root
    for part in relative.split("/")[:-1]:
        at = at / part
        if at.is_symlink() or not at.is_dir():
            return True
    return False
