"""Read a Dockerfile as far as a sandbox without images can follow it.

``read_dockerfile`` gives the image's workdir, which every backend needs. ``plan_layout`` gives the
files and variables of a Dockerfile that has nothing but FROM, WORKDIR, COPY and ENV (and what
changes no file), on an image whose programs this machine has too.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

PLAIN_IMAGES = frozenset(
    {"alpine", "bash", "buildpack-deps", "busybox", "debian", "python", "ubuntu"}
)
"""Images with nothing of a task in them."""
WITHOUT_EFFECT = frozenset({"ARG", "CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "SHELL"})
"""Instructions that neither change files nor commands that are given in full."""
INSTALLS_PYTEST = re.compile(
    r"(python3? -m )?pip3? install( --[a-z-]+)*( pytest([=<>~!]=?[0-9.*]+)?)+", re.I
)
"""A RUN whose effect every sandbox has already."""
SYSTEM = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/opt/agentrl",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
)
"""Directories of this machine that a sandbox shows, read-only."""
RESERVED = ("/tests", "/solution", "/logs", "/tmp")
"""Directories that a trial makes."""
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


class ImageOnlyError(ValueError):
    """An environment that only an image can give; the text says why."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile."""

    name: str
    """In upper case."""
    text: str


@dataclass(slots=True)
class FileLayout:
    """Files and variables that a Dockerfile adds; filled by ``plan_layout``."""

    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    """(path in the build context, absolute path inside), in order; a directory's content is
    copied into the path."""


def parse_dockerfile(text: str) -> list[Instruction]:
    """Return its instructions, without comments; raises ValueError for a here-document."""
    instructions = []
    joined = re.sub(r"\\[ \t]*\r?\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", text))
    for line in joined.splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        instructions.append(Instruction(name.upper(), rest.strip()))
    return instructions


def last_stage(instructions: list[Instruction]) -> list[Instruction]:
    """Return the instructions of the last stage, its FROM first."""
    starts = [n for n, each in enumerate(instructions) if each.name == "FROM"]
    return instructions[starts[-1] :] if starts else instructions


def find_workdir(text: str) -> str | None:
    """Return the WORKDIR of the last stage; None if it sets none, or by an unknown variable."""
    at = PurePosixPath("/")
    found = False
    for each in last_stage(parse_dockerfile(text)):
        if each.name == "WORKDIR":
            at, found = at / each.text.strip("\"'"), True
    return str(at) if found and "$" not in str(at) else None


def is_plain_image(image: str) -> bool:
    """Return whether an image has nothing but programs, such as ``python:3.12-slim``; a registry
    may be named before ``library/``.
    """
    place, _, last = image.partition("@")[0].rpartition("/")
    return place.rpartition("/")[2] in ("", "library") and last.partition(":")[0] in PLAIN_IMAGES


def plan_layout(text: str) -> FileLayout:
    """Return what a Dockerfile does besides its image; raises ImageOnlyError."""
    instructions = parse_dockerfile(text)
    if sum(each.name == "FROM" for each in instructions) != 1:
        raise ImageOnlyError("its Dockerfile has several stages")
    layout = FileLayout()
    for each in instructions:
        _follow(each, layout)
    return layout


def _follow(each: Instruction, layout: FileLayout) -> None:
    if each.name == "FROM":
        if not is_plain_image(each.text.split()[0]):
            raise ImageOnlyError(f"its Dockerfile builds on {each.text.split()[0]}")
    elif each.name == "WORKDIR":
        path = _expand(each.text.strip("\"'"), layout.env)
        layout.workdir = _normalize(PurePosixPath(layout.workdir) / path)
    elif each.name == "ENV":
        layout.env.update(_read_env(each.text, layout.env))
    elif each.name in ("COPY", "ADD"):
        _plan_copy(each, layout)
    elif each.name == "RUN" and INSTALLS_PYTEST.fullmatch(" ".join(each.text.split())):
        return
    elif each.name not in WITHOUT_EFFECT:
        raise ImageOnlyError(f"its Dockerfile has {each.name} {each.text[:60]}")


def _plan_copy(each: Instruction, layout: FileLayout) -> None:
    words = json.loads(each.text) if each.text.startswith("[") else shlex.split(each.text)
    words = [word for word in words if not word.startswith(("--chown=", "--chmod=", "--link"))]
    if len(words) < 2 or any(word.startswith(("--", "<<")) for word in words):
        raise ImageOnlyError(f"its Dockerfile has {each.name} {each.text[:60]}")
    *sources, target = (_expand(word, layout.env) for word in words)
    for source in sources:
        if "://" in source or (source.endswith((".tar", ".tar.gz", ".tgz")) and each.name == "ADD"):
            raise ImageOnlyError(f"its Dockerfile has {each.name} {each.text[:60]}")
        into = target if target not in (".", "./") else f"{layout.workdir}/"
        path = _normalize(PurePosixPath(layout.workdir) / into)
        layout.copies.append((source, path + ("/" if into.endswith("/") else "")))


def _read_env(text: str, known: dict[str, str]) -> dict[str, str]:
    words = shlex.split(text)
    if words and "=" not in words[0]:  # the old form: ENV NAME value
        name, _, value = text.partition(" ")
        return {name: _expand(value.strip(), known)}
    pairs = [word.partition("=") for word in words]
    return {name: _expand(value, known) for name, _, value in pairs}


def _expand(text: str, env: dict[str, str]) -> str:
    """Return a text with variables of the Dockerfile; raises ImageOnlyError for the image's."""

    def replace(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in env:
            raise ImageOnlyError(f"its Dockerfile uses ${name}, which the image has")
        return env[name]

    return VARIABLE.sub(replace, text)


def _normalize(path: PurePosixPath) -> str:
    if ".." in path.parts:
        raise ImageOnlyError(f"its Dockerfile has the path {path}")
    return str(path)


def check_place(path: str) -> None:
    """Raise ImageOnlyError if a sandbox without images cannot have a file of the task there."""
    for other in (*SYSTEM, *RESERVED):
        if path == other or path.startswith(f"{other}/"):
            raise ImageOnlyError(f"it has files of its own in {other}")
    if path.strip("/") == "":
        raise ImageOnlyError("its files are in /")


def copy_sources(context: Path, source: str) -> list[Path]:
    """Return the files of a build context that a COPY names; raises ValueError for none."""
    pattern = source.lstrip("/")
    pattern = pattern.removeprefix("./").rstrip("/") or "."
    if ".." in PurePosixPath(pattern).parts:
        raise ValueError(f"COPY {source} leads out of environment/")
    found = [context] if pattern == "." else sorted(context.glob(pattern))
    if not found:
        raise ValueError(f"COPY {source}: environment/ has no such file")
    return found
