"""One Harbor task directory: its files checked, its configuration, its digest.

Invariant: whatever a directory contains, nothing outside it is read: a symbolic link that leads out
of it, or in a circle, makes the task invalid, and so does anything but files and directories.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import ValidationError

from runners.tasks.harbor.dockerfile import find_workdir
from runners.tasks.harbor.task_config import TaskConfig, resolve_variables

CONFIG, INSTRUCTION = "task.toml", "instruction.md"
ENVIRONMENT, TESTS, SOLUTION = "environment", "tests", "solution"
TEST_SCRIPT, SOLVE_SCRIPT = "test.sh", "solve.sh"
DOCKERFILE = "Dockerfile"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
SERVICE_KEYS = frozenset({"build", "command", "environment", "image", "working_dir"})
"""Keys of a compose file's service ``main`` that do not change what the task is."""
DEFAULT_WORKDIR = "/app"
"""Workdir where neither task.toml nor a Dockerfile names one: that of most public tasks."""
CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)\s*", re.I)
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_ID = 100
SCRIPT_LIMIT = 1 << 20


TEXT_LIMITS = {CONFIG: 64 << 10, INSTRUCTION: 1 << 20}
"""Bytes; the time to read TOML is quadratic in the parts of a key."""


@dataclass(frozen=True, slots=True)
class TaskDirectory:
    """A valid task directory."""

    path: Path
    name: str
    """``[task].name``, else the directory's name."""
    config: TaskConfig
    instruction: str
    """Text for the agent, without canary comments."""
    workdir: str
    """Absolute path inside, in which agent, solution and verifier start."""
    digest: str
    """SHA-256 (hex) over all paths, contents and executable bits."""

    @property
    def id(self) -> str:
        """Name of the task that is safe as a file's name; equal for equal names alone."""
        return make_safe_id(self.name)

    @property
    def environment(self) -> Path:
        """The build context."""
        return self.path / ENVIRONMENT

    @property
    def dockerfile(self) -> Path | None:
        """The Dockerfile that decides, if any: a prebuilt image wins over it."""
        file = self.environment / DOCKERFILE
        return file if self.config.environment.docker_image is None and file.is_file() else None

    @property
    def has_solution(self) -> bool:
        """True if it has a reference solution."""
        return (self.path / SOLUTION / SOLVE_SCRIPT).is_file()


def make_safe_id(name: str) -> str:
    """Return a name as an id: ``org/task`` becomes ``org__task``.

    A name that has other characters, or is long, ends in a part of its hash.
    """
    safe = UNSAFE.sub("-", name.replace("/", "__")).lstrip("-._") or "task"
    if safe == name.replace("/", "__") and len(safe) <= LONGEST_ID:
        return safe
    return f"{safe[: LONGEST_ID - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def read_directory(path: Path) -> TaskDirectory:
    """Return the task of a directory; raises ValueError and OSError."""
    path = path.resolve()
    for name, limit in TEXT_LIMITS.items():
        if (path / name).is_file() and (path / name).stat().st_size > limit:
            raise ValueError(f"{name} is longer than {limit >> 10} KiB")
    digest = hash_tree(path)
    config = _read_config(path / CONFIG)
    name = config.task.name if config.task is not None else path.name
    _check_scripts(path, config)
    _check_environment(path, config)
    _check_variables(config)
    return TaskDirectory(
        path, name, config, _read_instruction(path), _find_workdir(path, config), digest
    )


@lru_cache(maxsize=4096)
def reread_directory(path: Path, digest: str) -> TaskDirectory:
    """Return the task of a directory that was read before, with this digest.

    Raises ValueError if it has changed since.
    """
    found = read_directory(path)
    if found.digest != digest:
        raise ValueError(f"{path} has changed since the run read it: restore it")
    return found


def hash_tree(path: Path) -> str:
    """Return the digest of a task directory; raises ValueError for a link or file that is refused.

    Links are followed inside the directory only, so the digest covers what they lead to.
    """
    total = hashlib.sha256()
    for relative, entry in _walk(path):
        total.update(os.fsencode(relative) + b"\0")
        if entry.is_symlink():
            total.update(b"link " + os.fsencode(entry.readlink()) + b"\0")
        elif entry.is_file():
            executable = bool(entry.stat().st_mode & stat.S_IXUSR)
            with entry.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            total.update((b"program " if executable else b"file ") + content)
    return total.hexdigest()


def _walk(root: Path) -> list[tuple[str, Path]]:
    """Return everything below a directory, sorted, with its path relative to it."""
    found = []
    for folder, directories, files in os.walk(root, onerror=_raise):
        for name in sorted([*directories, *files]):
            entry = Path(folder, name)
            relative = entry.relative_to(root).as_posix()
            _check_entry(root, entry, relative)
            found.append((relative, entry))
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _check_entry(root: Path, entry: Path, relative: str) -> None:
    mode = entry.lstat().st_mode
    if stat.S_ISLNK(mode):
        try:
            target = entry.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{relative} is a symbolic link that leads nowhere") from error
        if not target.is_relative_to(root):
            raise ValueError(f"{relative} is a symbolic link that leads out of the task")
        if entry.parent.is_relative_to(target):
            raise ValueError(f"{relative} is a symbolic link that leads in a circle")
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{relative} is neither a file nor a directory")


def _read_config(file: Path) -> TaskConfig:
    """Return a task.toml; raises ValueError, which names every wrong key."""
    try:
        return TaskConfig.model_validate(_read_toml(file))
    except ValidationError as error:
        lines = []
        for fault in error.errors(include_url=False):
            key = ".".join(str(part) for part in fault["loc"])
            text = fault["msg"].removeprefix("Value error, ")
            lines.append(f"{key}: {text}" if key else text)
        raise ValueError(f"{CONFIG}: {'; '.join(lines)}") from error


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except RecursionError as error:
        raise ValueError(f"{CONFIG} has brackets in brackets, deeper than can be read") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{CONFIG} is not TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{CONFIG} is not UTF-8") from error


def _read_instruction(path: Path) -> str:
    file = path / INSTRUCTION
    if not file.is_file():
        raise ValueError(f"it has no {INSTRUCTION}")
    try:
        text = strip_canary(file.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{INSTRUCTION} is not UTF-8") from error
    if not text.strip():
        raise ValueError(f"{INSTRUCTION} is empty")
    return text


def strip_canary(text: str) -> str:
    """Return an instruction without leading canary comments and the blank lines after them."""
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines) and CANARY.fullmatch(lines[start]):
        start += 1
        while start < len(lines) and not lines[start].strip():
            start += 1
    return "".join(lines[start:])


def _check_scripts(path: Path, config: TaskConfig) -> None:
    tests = path / TESTS / TEST_SCRIPT
    own = config.verifier.environment
    if not tests.is_file() and (own is None or own.docker_image is None):
        raise ValueError(f"it has no {TESTS}/{TEST_SCRIPT}")
    if config.verifier.separate and (path / TESTS / DOCKERFILE).exists():
        raise ValueError(
            f"{TESTS}/{DOCKERFILE}: a verifier's image is not built here; build it and name it in "
            "[verifier.environment] docker_image"
        )
    for script in (tests, path / SOLUTION / SOLVE_SCRIPT):
        if not script.is_file():
            continue
        content = script.read_bytes()
        if len(content) > SCRIPT_LIMIT:
            raise ValueError(f"{script.relative_to(path)} is longer than {SCRIPT_LIMIT} bytes")
        if content.partition(b"\n")[0].endswith(b"\r"):
            raise ValueError(
                f"{script.relative_to(path)} has CRLF line ends, so its first line names no "
                "program: convert it (sed -i 's/\\r$//')"
            )


def _check_environment(path: Path, config: TaskConfig) -> None:
    compose = [path / ENVIRONMENT / name for name in COMPOSE]
    for file in (each for each in compose if each.exists()):
        _check_compose(file, config)
    dockerfile = path / ENVIRONMENT / DOCKERFILE
    if config.environment.docker_image is None and not dockerfile.is_file():
        raise ValueError(
            f"it has neither {ENVIRONMENT}/{DOCKERFILE} nor [environment] docker_image"
        )


def _check_compose(file: Path, config: TaskConfig) -> None:
    try:
        document = yaml.safe_load(file.read_text("utf-8"))
        services = document["services"]
        names = sorted(services)
        keys = set(services.get("main") or {})
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file.name} describes no services") from error
    if names != ["main"]:
        raise ValueError(
            f"{file.name} has the services {', '.join(map(str, names))}: only one, main, can be run"
        )
    if unknown := sorted(keys - SERVICE_KEYS):
        raise ValueError(f"{file.name}: services.main.{unknown[0]} is not supported")
    image = services["main"].get("image")
    if image is not None and config.environment.docker_image is None:
        raise ValueError(f"{file.name}: name the image in [environment] docker_image instead")


def _find_workdir(path: Path, config: TaskConfig) -> str:
    if config.environment.workdir is not None:
        return config.environment.workdir
    file = path / ENVIRONMENT / DOCKERFILE
    found = find_workdir(file.read_text("utf-8", "replace")) if file.is_file() else None
    return found or DEFAULT_WORKDIR


def _check_variables(config: TaskConfig) -> None:
    """Raise ValueError for a template that has no value on this machine."""
    own = config.verifier.environment
    tables = {"environment": config.environment.env, "verifier": config.verifier.env}
    tables |= {"solution": config.solution.env, "verifier.environment": own.env if own else {}}
    for table, env in tables.items():
        resolve_variables(table, env, os.environ)
