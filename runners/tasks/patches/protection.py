"""Protected paths: the parts of a work tree that decide the tests, so an agent may not change them.

Protected are the task's own paths (the tests), whatever configures pytest, and whatever Python
would import instead of a test, of pytest or of its own library; where a command decides, what its
runner collects, and what configures it (``command_files.py``). A patch leaves these paths out and
names them; grading restores them, whoever made the patch. Configuration that the reference patch
changes is not protected; tests are.

What an installation leaves in a work tree is left out silently: ``pip install -e .`` is honest. But
pytest loads the plugins that such metadata names, and Python executes lines of ``.pth`` files,
wherever modules are imported from.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from runners.records.text import make_printable
from runners.tasks.contract import (
    DEPTH_LIMIT,
    FILE_LIMIT,
    PATH_LIMIT,
    Patch,
    ScriptGrading,
    Task,
    UnittestIds,
    workspace_error,
)
from runners.tasks.patches.command_files import (
    CommandFiles,
    Role,
    list_files,
    read_deciding_part,
)
from runners.tasks.patches.diffs import read_paths

PLUGINS = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py"})
"""Files that pytest or Python runs without being asked to."""
SETTINGS = frozenset({"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
SHARED: dict[str, tuple[str, ...]] = {
    "tox.ini": ("pytest",),
    "setup.cfg": ("tool:pytest",),
    "pyproject.toml": ("tool", "pytest"),
}
"""Files of which pytest reads one part: INI sections, or the path of a TOML table."""
SETTINGS_LIMIT = 256 << 10
"""Bytes; a larger shared file counts as changed instead of being parsed."""
PLUGIN = "agentrl_report"
"""Our pytest plugin."""
TOOLS = frozenset(
    {
        *(PLUGIN, "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"),
        *("agentrl_channel", "agentrl_guard", "sitecustomize", "usercustomize"),
        # parts and dependencies of the pytest that an image may have, from 3.6 on
        *("atomicwrites", "attr", "attrs", "exceptiongroup", "funcsigs", "importlib_metadata"),
        *("more_itertools", "pathlib2", "pkg_resources", "pyparsing", "setuptools", "six", "toml"),
        *("tomli", "typing_extensions", "wcwidth", "zipp"),
        *("asynchat", "asyncore", "distutils", "imp", "smtpd"),  # in Python until 3.11
    }
)
"""Modules that ``python -m pytest`` imports from the work tree first, before our plugin runs."""
SKIPPED = frozenset({".git", "__pycache__"})
SUFFIXES = (".dist-info", ".egg-info", ".egg-link", ".pth")
SOURCES = frozenset({"", "src", "lib", "python"})
"""Folders of a repository from which modules are imported."""
SITES = frozenset({"site-packages", "dist-packages"})
CACHE = ".pytest_cache"
"""Pytest reads its last run there, for example which tests are to be skipped."""


def find_touched(task: Task, workspace: Path, *, with_new_tests: bool = False) -> tuple[str, ...]:
    """Return the protected paths that were changed or added, sorted.

    ``with_new_tests``: also those that a command's runner would collect besides its own. They stay
    in a patch, and no grading runs them.
    """
    others = set(_shadows(task, workspace))
    tests = set(_tests(task, workspace))
    if not isinstance(task.grading, UnittestIds):  # unittest reads none of these
        others |= set(_configuration(task, workspace))
    for path, role in _deciding(task, workspace):
        if role == "setting":
            others.add(path)
        elif with_new_tests or os.path.lexists(task.repo / path):
            tests.add(path)
    free = read_paths(task.gold_patch).all
    bound = {
        path
        for path in others - free
        if not any(changed.startswith(f"{path}/") for changed in free)  # of a new folder
    }
    return tuple(sorted({*tests, *bound}))


def find_tampering(task: Task, paths: Iterable[str]) -> set[Role]:
    """Return the roles of those changed paths that decide the command of a task: of tests that the
    repository has, and of settings. A new test is no tampering, and a task may ask for tests.
    """
    files = _command_files(task)
    if files is None:
        return set()
    roles = {(path, files.role(path)) for path in paths}
    return {
        role
        for path, role in roles
        if role == "setting"
        or (role == "test" and not task.asks_for_tests and os.path.lexists(task.repo / path))
    }


def list_tests(task: Task) -> tuple[str, ...]:
    """Return the tests of the repository that decide a task's command, sorted; blocks."""
    files = _command_files(task)
    if files is None:
        return ()
    return tuple(sorted(path for path in list_files(task.repo) if files.role(path) == "test"))


def _command_files(task: Task) -> CommandFiles | None:
    """Return the files that decide a task's command; None if no command decides."""
    grading = task.grading
    if not isinstance(grading, ScriptGrading) or grading.kind != "eval_cmd" or not grading.script:
        return None
    return CommandFiles(grading.script, grading.workdir, task.repo)


def _deciding(task: Task, workspace: Path) -> Iterator[tuple[str, Role]]:
    """Yield the changed and new paths that decide a task's command, with their roles."""
    files = _command_files(task)
    if files is None:
        return
    present = {
        path
        for path, entry in walk_entries(str(workspace))
        if not entry.is_dir(follow_symlinks=False)
    }
    for path in list_files(task.repo) | present:
        role = files.role(path)
        if not role or path.endswith(".pyc"):
            continue
        before, after = (dict(_contents(root, path)) for root in (task.repo, workspace))
        if before == after:
            continue
        if role == "test" or read_deciding_part(task.repo / path) != read_deciding_part(
            workspace / path
        ):
            yield files.find_new_folder(path), role


def find_metadata(task: Task, patch: Patch) -> tuple[str, ...]:
    """Return the paths of metadata and caches that a patch changes, sorted."""
    free = read_paths(task.gold_patch).all
    changed = read_paths(patch.diff.decode("utf-8", "surrogateescape")).all - free
    return tuple(sorted({found for path in changed for found in _metadata_of(path)}))


def _metadata_of(path: str) -> Iterator[str]:
    parts = path.split("/")
    for number, part in enumerate(parts):
        folder = "/".join(parts[:number])
        importable = folder in SOURCES or parts[number - 1] in SITES
        if part == CACHE or (importable and part.endswith(SUFFIXES)):
            yield "/".join(parts[: number + 1])
            return


def escape_path(path: str) -> str:
    """Return a path as printable text: bytes that are not UTF-8 are escaped."""
    return make_printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


def walk_entries(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield every entry below ``root`` except the top ``.git``, Python's caches and the contents of
    nested ``.git`` directories; makes directories readable on the way.

    Raises OSError, and RefusedError for directories deeper than git can walk.
    """
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        _make_readable(f"{root}/{folder}")
        with os.scandir(f"{root}/{folder}") as found:
            for entry in found:
                path = f"{folder}{entry.name}"
                if path == ".git" or entry.name == "__pycache__":
                    continue
                if depth >= DEPTH_LIMIT or len(os.fsencode(path)) > PATH_LIMIT:
                    shown = f"{escape_path(path)[:60]}…"
                    raise workspace_error(f"{shown} is deeper than {DEPTH_LIMIT} directories")
                yield path, entry
                if entry.is_dir(follow_symlinks=False) and entry.name.lower() != ".git":
                    waiting.append((f"{path}/", depth + 1))


def _make_readable(folder: str) -> None:
    """Make a directory readable for us, whatever mode an agent gave it; raises OSError."""
    mode = os.stat(folder, follow_symlinks=False).st_mode  # noqa: PTH116
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)  # noqa: PTH101


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
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode) or info.st_size > SETTINGS_LIMIT:
        return object()
    sections = SHARED[path.name]
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text).get(sections[0], {}).get(sections[1])
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        return {name: dict(parser[name]) for name in sections if parser.has_section(name)} or None
    except (OSError, ValueError, AttributeError, RecursionError, configparser.Error):
        return object()  # RecursionError: brackets in brackets


def _shadows(task: Task, workspace: Path) -> Iterator[str]:
    """Yield new paths that Python would import instead of a test, a tool or its own library."""
    taken = sys.stdlib_module_names | TOOLS
    for name in _importable(workspace):
        if name.partition(".")[0] in taken and not os.path.lexists(task.repo / name):
            yield name
    for protected in task.protected:
        folder = ""
        for part in protected.rstrip("/").split("/"):
            if not _is_directory(workspace / folder):
                break
            for name in _importable(workspace / folder):
                path = f"{folder}{name}"
                alike = name != part and name.partition(".")[0] == part.partition(".")[0]
                if alike and not os.path.lexists(task.repo / path):
                    yield path
            folder += f"{part}/"


def _importable(folder: Path) -> list[str]:
    """Return the names in a directory that ``import`` considers."""
    if not _is_directory(folder):
        return []
    with os.scandir(folder) as found:
        return [
            entry.name
            for entry in found
            if entry.name.endswith((".py", ".pyc", ".so"))
            # Any link: on the host it leads to another file than in a sandbox.
            or entry.is_symlink()
            or entry.is_dir(follow_symlinks=False)
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
        # A digest, not the content: an agent decides how many such files there are.
        yield relative, (f"file{executable}", _digest(path))
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
        if not _is_directory(at):
            return True
    return False


def _is_directory(path: Path) -> bool:
    """Return whether a path is a directory itself, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _digest(path: Path) -> bytes:
    """Return the digest of a regular file; a file beyond the limit is like any other such file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if os.fstat(handle).st_size > FILE_LIMIT:
            return b"too large"
        return hashlib.file_digest(file, "sha256").digest()
