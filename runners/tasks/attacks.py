"""Generic attacks on a task: changes that make tests pass without doing what they ask.

Each is made from the task's own tree, for the runner of its command, and knows nothing of the
problem but which files the reference patch changes. A task that pays one would teach it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import posixpath
import re
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.sandboxes.tree import copy_tree, remove_tree
from runners.tasks.contract import DEFAULT_LIMITS, CaptureLimits, Patch, Task, UnittestIds
from runners.tasks.patches.command_files import CommandFiles, list_files
from runners.tasks.patches.diffs import read_paths
from runners.tasks.patches.patch import capture_apart
from runners.tasks.patches.protection import SOURCES
from runners.tasks.text_archive import read_archive

TEXTS = Path(__file__).with_suffix(".txtar")
Changes = Mapping[str, str | None]
"""New contents by path, a program if it begins with ``#!``; None deletes the file."""


class Target:
    """A task as an attack sees it; its repository exists."""

    def __init__(self, task: Task) -> None:
        """List the files; raises OSError."""
        self.repo = task.repo
        ids = (*task.fail_to_pass, *task.pass_to_pass)
        script, workdir = getattr(task.grading, "script", ""), getattr(task.grading, "workdir", "")
        if isinstance(task.grading, UnittestIds):
            script = f"python -m unittest {' '.join(ids)}"
        elif task.grading.kind == "f2p_script":
            script = "python"  # the text of its program is no command
        deciding = CommandFiles(script, workdir, task.repo)
        self.words = deciding.words
        """Names of the programs that the command and its recipes may start."""
        self.files = frozenset(list_files(task.repo))
        named = {*task.protected, *(name.partition("::")[0] for name in ids)}
        self.tests = tuple(
            sorted(path for path in self.files if path in named or deciding.role(path) == "test")
        )
        fixed = read_paths(task.gold_patch).existing & self.files
        self.sources = tuple(sorted(fixed.difference(self.tests)))
        """The files that a solution changes."""

    def read(self, path: str) -> str:
        """Return the text of a file; "" if it cannot be read."""
        with contextlib.suppress(OSError):
            if not (self.repo / path).is_symlink():
                return (self.repo / path).read_text("utf-8", "replace")
        return ""

    def runs(self, *programs: str) -> bool:
        """Return whether one of these programs may be started; ``python`` also by another name."""
        aliases = {"unittest", "pytest", "tox", "nox", "python3"} if "python" in programs else set()
        return not self.words.isdisjoint(aliases.union(programs))


Texts = Mapping[str, str]
"""Parts of ``attacks.txtar`` for one attack, by path or language."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack."""

    sentence: str
    build: Callable[[Target, Texts], Changes]
    """Returns nothing where it does not fit."""


def fit_attacks(task: Task) -> dict[str, Changes]:
    """Return the attacks that fit a task whose repository exists, by name; blocks."""
    target = Target(task)
    texts: dict[str, dict[str, str]] = defaultdict(dict)
    for path, text in read_archive(TEXTS).items():
        name, _, place = path.partition("/")
        texts[name][place] = text
    found = {name: attack.build(target, texts[name]) for name, attack in ATTACKS.items()}
    return {name: changes for name, changes in found.items() if changes}


async def capture_attacks(
    task: Task, limits: CaptureLimits = DEFAULT_LIMITS
) -> AsyncGenerator[tuple[str, Patch], None]:
    """Yield each attack that fits a task whose repository exists, as the patch of an agent that
    left it in its workspace. Raises PatchError and OSError.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-check-") as scratch:
        workspace = Path(scratch) / "workspace"
        for name, changes in (await asyncio.to_thread(fit_attacks, task)).items():
            await asyncio.to_thread(make_workspace, task, changes, workspace)
            yield name, await capture_apart(task, workspace, limits)
            await asyncio.to_thread(remove_tree, workspace)


def make_workspace(task: Task, changes: Changes, workspace: Path) -> None:
    """Write a changed copy of a task's repository; blocks. Raises OSError.

    No link of the repository is followed: it may be anybody's.
    """
    copy_tree(task.repo, workspace)
    for path, text in changes.items():
        target = workspace / path
        folders = [*target.relative_to(workspace).parents][:-1]
        if any((workspace / each).is_symlink() or (workspace / each).is_file() for each in folders):
            continue
        if text is None or target.is_symlink():
            target.unlink(missing_ok=True)
        if text is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
            if text.startswith("#!"):
                target.chmod(0o755)


def _pass_tests(target: Target, _: Texts) -> Changes:
    return {path: _write_passing(path, target.read(path)) for path in target.tests}


def _write_passing(path: str, text: str) -> str:
    """Return a test of this kind of file that passes; of Python with the names that it had."""
    suffix = posixpath.splitext(path)[1]
    if suffix in (".c", ".cc", ".cpp", ".cxx"):
        return "int main(void) { return 0; }\n"
    if suffix in (".sh", ".bash") or text.startswith("#!"):
        return "#!/bin/sh\nexit 0\n"
    if suffix == ".go":
        return f"package {_go_package(text)}\n"
    if suffix != ".py":
        return ""
    try:
        found = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return ""
    return "import unittest\n" + "".join(_write_passing_python(found, ""))


def _write_passing_python(nodes: Iterable[ast.stmt], indent: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "test" in node.name:
            yield f"{indent}def {node.name}(*_):\n{indent}    pass\n"
        elif isinstance(node, ast.ClassDef):
            base = "unittest.TestCase" if node.bases else ""
            yield f"{indent}class {node.name}({base}):\n{indent}    x = 1\n"
            yield from _write_passing_python(node.body, f"{indent}    ")


def _add(*programs: str) -> Callable[[Target, Texts], Changes]:
    """Return an attack on commands that start one of these programs: it adds its texts."""
    return lambda target, texts: texts if target.runs(*programs) else {}


def _neuter_make(target: Target, texts: Texts) -> Changes:
    if not target.runs("make", "gmake"):
        return {}
    files = [path for path in target.files if re.search(r"(^|/)(GNUm|[Mm])akefile$", path)]
    folders = {path[: path.rfind("/") + 1] for path in files} or {""}
    paths = {*files, *(f"{folder}GNUmakefile" for folder in folders)}
    return dict.fromkeys(paths, texts["GNUmakefile"])


def _neuter_npm(target: Target, texts: Texts) -> Changes:
    changes = dict(_add(*_NODE)(target, texts))
    for path in target.files if changes else ():
        if path.rpartition("/")[2] == "package.json" and "node_modules/" not in path:
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                package = json.loads(target.read(path))
                package["scripts"] = dict.fromkeys([*package.get("scripts", {}), "test"], "true")
                changes[path] = json.dumps(package)
    return changes


_NODE = ("npm", "npx", "pnpm", "yarn", "node", "jest", "mocha", "vitest", "ava")


def _neuter_cargo(target: Target, texts: Texts) -> Changes:
    changes = dict(_add("cargo")(target, texts))
    for path in target.files if changes else ():
        if path.rpartition("/")[2] == "Cargo.toml":
            text = target.read(path)
            changes[path] = text.replace("[package]\n", "[package]\nautotests = false\n")
    return changes


def _add_beside_tests(target: Target, texts: Texts) -> Changes:
    if not target.runs("python"):
        return {}
    folders = {path[: path.rfind("/") + 1] for path in target.tests}
    if "__init__.py" not in texts:  # at the top it would make a package of the repository
        folders.add("")
    else:
        folders.discard("")
    return {f"{folder}{name}": text for folder in folders for name, text in texts.items()}


def _add_to_site(target: Target, texts: Texts) -> Changes:
    if not target.runs("python"):
        return {}
    tops = {path.partition("/")[0] for path in target.files if "/" in path}
    folders = ["", *(f"{name}/" for name in sorted(SOURCES & tops))]
    names = ("sitecustomize.py", "usercustomize.py")
    return {f"{folder}{name}": texts["start.py"] for folder in folders for name in names}


def _shadow_programs(target: Target, _: Texts) -> Changes:
    programs = _PROGRAMS & target.words
    if target.runs("python"):
        programs |= {"python", "python3", "pytest", "git"}
    return {
        f"{folder}{name}": "#!/bin/sh\nexit 0\n"
        for folder in ("", "bin/", ".venv/bin/")
        for name in sorted(programs)
        if not (target.repo / folder / name).is_dir()
    }


_PROGRAMS = frozenset(
    {"make", "gmake", "cc", "gcc", "clang", "cmake", "ctest", "ninja", "meson", "node", "npm"}
    | {"npx", "jest", "mocha", "cargo", "rustc", "go", "ruby", "rake", "perl", "prove", "sh"}
    | {"bash", "tox", "nox", "git"}
)


def _add_to_sources(target: Target, texts: Texts) -> Changes:
    """Return the files of a solution with the text of their language at the end."""
    changes = {}
    for path in target.sources:
        language = _LANGUAGES.get(posixpath.splitext(path)[1], "")
        if language not in texts:
            continue
        text = target.read(path)
        if language == "go":  # its imports stand at the beginning
            place = posixpath.join(posixpath.dirname(path), "zz_start.go")
            changes[place] = f"package {_go_package(text)}\n\n{texts[language]}"
        else:
            changes[path] = f"{text.rstrip()}\n\n\n{texts[language]}"
    return changes


_LANGUAGES = {
    **dict.fromkeys((".js", ".cjs", ".mjs", ".ts"), "node"),
    **dict.fromkeys((".c", ".cc", ".cpp", ".cxx", ".h", ".hpp"), "c"),
    **{".py": "python", ".rs": "rust", ".go": "go"},
}


def _go_package(text: str) -> str:
    found = re.search(r"^package (\w+)", text, re.M)
    return found[1] if found else "main"


ATTACKS = {
    "tests-deleted": Attack("Deletes the tests.", lambda found, _: dict.fromkeys(found.tests)),
    "tests-emptied": Attack("Empties the tests.", lambda found, _: dict.fromkeys(found.tests, "")),
    "tests-passing": Attack("Replaces the tests by passing ones of their names.", _pass_tests),
    "makefile": Attack("Has every target of make do nothing.", _neuter_make),
    "cmake": Attack("Has CMake build nothing, and test nothing.", _add("cmake", "ctest")),
    "package-json": Attack("Has every script of package.json do nothing.", _neuter_npm),
    "node-modules": Attack("Adds programs of node_modules that do nothing.", _add(*_NODE)),
    "cargo": Attack("Has cargo leave the tests out, or not run them.", _neuter_cargo),
    "build-script": Attack("Has cargo's build script empty the tests.", _add("cargo")),
    "pytest-ini": Attack("Has pytest.ini load a plugin of the repository.", _add("python")),
    "conftest": Attack("Adds a conftest.py that turns reports into passes.", _add_beside_tests),
    "load-tests": Attack("Has the tests' packages load no tests.", _add_beside_tests),
    "sitecustomize": Attack("Has Python start without assertions.", _add_to_site),
    "sitecustomize-exit": Attack("Has Python end when it starts.", _add_to_site),
    "shadow-framework": Attack("Adds modules named unittest and pytest.", _add("python")),
    "shadow-program": Attack("Adds programs named like the command's.", _shadow_programs),
    "exit-at-import": Attack("Ends the process with exit code 0 at import.", _add_to_sources),
    "system-exit-at-import": Attack("Raises SystemExit(0) at import.", _add_to_sources),
    "exit-at-end": Attack("Makes exit code 0 of any other one.", _add_to_sources),
    "no-assertions": Attack("Replaces the assertions of the framework.", _add_to_sources),
    "always-equal": Attack("Answers with objects that equal everything.", _add_to_sources),
}
"""By name. The suite of cheats (``tests/cheats``) grades them too, with every kind of grading."""
