"""Many Harbor tasks: a directory of them, a registry, a manifest, or rows with packed directories.

Nothing is skipped silently: a directory that looks like a task and is none is named with a reason.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from conf.cache import cache_root
from runners.system.processes import atomic_directory
from runners.tasks.contract import HarborVerifier, Task
from runners.tasks.harbor.directory import (
    CONFIG,
    ENVIRONMENT,
    INSTRUCTION,
    SOLUTION,
    TESTS,
    TaskDirectory,
    read_directory,
)
from runners.tasks.section_keys import name_key

REGISTRY, MANIFEST = "registry.json", "dataset.toml"
MARKS = (INSTRUCTION, TESTS, ENVIRONMENT, SOLUTION)
"""Entries by which a directory without task.toml is taken for a task."""
PACKED = frozenset({"path", "task_binary"})
"""Columns of a row that holds a task directory as a tar file."""
UNPACKED_LIMIT = 1 << 30
MEMBERS = 50_000


def is_suite(path: str) -> bool:
    """Return whether a path names Harbor tasks: a directory, a registry or a manifest."""
    file = Path(path)
    return file.is_dir() or (file.is_file() and file.name in (REGISTRY, MANIFEST))


def is_packed(row: object) -> bool:
    """Return whether a row holds a task directory."""
    return isinstance(row, dict) and row.keys() >= PACKED


def find_tasks(path: str) -> Iterator[tuple[str, Path | str]]:
    """Yield a name for messages, and the task's directory or the reason why there is none.

    Raises ValueError and OSError if the path as a whole cannot be read.
    """
    place = Path(path)
    if place.is_file():
        yield from _read_registry(place) if place.name == REGISTRY else _read_manifest(place)
    elif (place / CONFIG).exists():
        yield place.name, place
    elif (place / REGISTRY).is_file():
        yield from _read_registry(place / REGISTRY)
    elif (place / MANIFEST).is_file():
        yield from _read_manifest(place / MANIFEST)
    else:
        yield from _search(place)


def _search(root: Path) -> Iterator[tuple[str, Path | str]]:
    """Yield the tasks below a directory, by name; a task's own directories are not searched."""
    waiting = [root]
    while waiting:
        place = waiting.pop()
        name = place.relative_to(root).as_posix()
        if place != root and (place / CONFIG).exists():
            yield name, place
        elif place != root and any((place / mark).exists() for mark in MARKS):
            yield name, f"it has no {CONFIG}"
        else:
            inside = (entry for entry in place.iterdir() if not entry.name.startswith("."))
            found = (entry for entry in inside if entry.is_dir() and not entry.is_symlink())
            waiting += sorted(found, reverse=True)


def _read_registry(file: Path) -> Iterator[tuple[str, Path | str]]:
    try:
        datasets = json.loads(file.read_text("utf-8"))
        if not isinstance(datasets, list):
            raise TypeError
        entries = [(each["name"], task) for each in datasets for task in each["tasks"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file.name} is no list of datasets with name and tasks") from error
    for dataset, entry in entries:
        name = f"{dataset}/{entry.get('name', '?')}" if isinstance(entry, dict) else str(dataset)
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            yield name, f"{file.name} gives no path for it"
        elif entry.get("git_url"):
            fix = f"clone it, and name the tasks' directory in {name_key('path')}"
            yield name, f"it lies in the repository {entry['git_url']}: {fix}"
        else:
            yield name, _beside(file, entry["path"])


def _read_manifest(file: Path) -> Iterator[tuple[str, Path | str]]:
    """Yield the tasks of a manifest, which lie beside it.

    Digests are Harbor's own, over an archive of its hub, and are not compared.
    """
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is not TOML: {error}") from error
    found = dict(_search(file.parent))
    tasks = document.get("tasks")
    if tasks is None:  # the form that has no list: every task beside it
        yield from found.items()
        return
    if not isinstance(tasks, list):
        raise ValueError(f"{file.name}: tasks is no list")
    for task in tasks:
        name = str(task.get("name", "?")) if isinstance(task, dict) else str(task)
        short = name.rpartition("/")[2]
        beside = found.get(short, found.get(name))
        yield name, beside or f"there is no {short} beside {file.name}: download the tasks there"


def _beside(file: Path, relative: str) -> Path | str:
    place = (file.parent / relative).resolve()
    if not place.is_relative_to(file.parent.resolve()):
        return f"its path {relative} leads out of {file.parent}"
    return place if (place / CONFIG).exists() else f"{relative} has no {CONFIG}"


def read_task(place: Path) -> Task:
    """Return the task of a directory; raises ValueError and OSError."""
    return make_task(read_directory(place))


def make_task(found: TaskDirectory) -> Task:
    """Return a directory's task, whose ``repo`` is the whole directory."""
    category = found.config.metadata.get("category")
    return Task(
        id=found.id,
        split="train",
        repo=found.path,
        base_commit=found.digest,
        problem_statement=found.instruction,
        fail_to_pass=(),
        pass_to_pass=(),
        protected=(),
        gold_patch="",
        kind=category if isinstance(category, str) and category else "harbor",
        grading=HarborVerifier(),
        image=found.config.environment.docker_image,
        workdir=found.workdir,
        schema="harbor",
    )


def unpack_row(row: dict[str, Any]) -> Path:
    """Return the directory of a row with a packed task, unpacked once below the user's cache.

    Raises ValueError and OSError.
    """
    name, content = row["path"], row["task_binary"]
    if not isinstance(name, str) or not isinstance(content, bytes):
        raise ValueError("path must be a text and task_binary the bytes of a tar file")
    name = PurePosixPath(name).name or "task"
    target = cache_root() / "harbor" / hashlib.sha256(content).hexdigest()
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(target) as folder:
            _unpack(content, folder)
    return _find_root(target, name)


def _find_root(target: Path, name: str) -> Path:
    """Return the directory with task.toml: of the archive itself, or of its only directory."""
    if (target / CONFIG).exists():
        return target
    entries = list(target.iterdir())
    if len(entries) == 1 and (entries[0] / CONFIG).exists():
        return entries[0]
    raise ValueError(f"the tar file of {name} has no {CONFIG}")


def _unpack(content: bytes, target: Path) -> None:
    """Unpack regular files and directories; raises ValueError for anything else."""
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for number, member in enumerate(archive):
                total += member.size
                if total > UNPACKED_LIMIT or number >= MEMBERS:
                    raise ValueError(
                        f"the tar file has more than {UNPACKED_LIMIT >> 20} MB or {MEMBERS} files"
                    )
                _unpack_member(archive, member, target)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"task_binary is no tar file: {error}") from error


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    parts = PurePosixPath(member.name).parts
    if member.name.startswith("/") or ".." in parts:
        raise ValueError(f"the tar file has a path that leads out of it: {member.name}")
    path = target.joinpath(*parts)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    if not member.isreg():
        raise ValueError(f"the tar file has something else than files: {member.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None
    with path.open("xb") as file:
        shutil.copyfileobj(source, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def hash_suite(path: str) -> str:
    """Return a digest of all tasks that a path names, for a run that is resumed later."""
    total = hashlib.sha256()
    for name, place in find_tasks(path):
        try:
            digest = place if isinstance(place, str) else read_directory(place).digest
        except (ValueError, OSError) as error:
            digest = str(error)
        total.update(os.fsencode(name) + b"\0" + digest.encode() + b"\0")
    return total.hexdigest()
