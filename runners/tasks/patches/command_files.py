"""The files of a repository that decide a command: the tests that its runner collects, and what
configures the runner.

They follow from names, and from the words of the command, of the shell scripts that it names and of
the recipes (Makefile, package.json) of its runner. Nothing is run: a repository may be anybody's,
and its tools need not be on this machine.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Role = Literal["test", "setting", ""]
"""Part of a path in the grading: "" if it has none."""
_TEST_NAME = re.compile(
    r"(^|[._-])tests?([._-]|$)"  # test_a.py, a.test.js, test-a.js, a_test.go, run_tests.sh
    r"|\.spec\.[cm]?[jt]sx?$|_spec\.rb$|\.t$"
    r"|^Tests?[A-Z]|[a-z0-9](Tests?|Spec|IT)\.\w+$"
)
"""Names of files that runners collect, and of scripts that run tests."""
_UNITTEST_NAME = re.compile(r"^test[^/]*\.py$")
_TEST_FOLDERS = frozenset({"test", "tests", "spec", "specs", "__tests__"})
"""At the top of a repository tests are all that is in them, helpers and data too; further down a
package may have this name, so a file that a runner collects must be below it.
"""
_DATA_FOLDERS = frozenset({"testdata", "__snapshots__", "__mocks__", "__fixtures__"})
_CHECK_WORD = re.compile(r"(^|[/._-])(tests?|spec|check|verify|eval|golden|expected)([/._-]|$)")
"""In a path that a command itself names: a recipe may compile ``src/eval.c``."""
_WORD = re.compile(r"[\w./@+-]+")
_FOLDER = re.compile(r"(?:\bcd|\s-C|--prefix|--directory)[ =]+([\w./-]+)")
_PARENT = re.compile(r"[^/]+/")
_SCRIPTS = (".sh", ".bash")
TEXT_LIMIT = 256 << 10
"""Bytes; the words of a larger recipe are not read."""
_ROUNDS = 3
"""A recipe may name a script that names a recipe."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A program that runs tests."""

    words: frozenset[str]
    """Its names in commands."""
    settings: re.Pattern[str]
    """Names of the files that configure it, or in which a command finds its steps."""
    folders: frozenset[str] = frozenset()
    """Names of folders that it runs programs from."""


_MAKE = Runner(frozenset({"make", "gmake"}), re.compile(r"^(GNUm|[Mm])akefile(\.\w+)?$|\.mk$"))
_CMAKE = Runner(
    frozenset({"ctest", "cmake", "ninja", "meson"}),
    re.compile(
        r"^(CMakeLists\.txt|CTest\w*\.(cmake|txt)|CMake(User)?Presets\.json|meson\.build"
        r"|meson(_options\.txt|\.options)|build\.ninja)$|\.cmake$"
    ),
    frozenset({"CMakeFiles"}),
)
_BUILDERS = (_MAKE, _CMAKE)
_BUILT = (".o", ".obj", ".a", ".so", ".lo", ".d", ".exe")
"""Ends of what is built: newer than its source, it is not built again."""
_RUNNERS = (
    Runner(frozenset({"tox", "nox", "hatch"}), re.compile(r"^(tox\.ini|noxfile\.py|hatch\.toml)$")),
    Runner(
        frozenset(
            {"npm", "npx", "pnpm", "yarn", "node", "nodejs", "bun", "deno", "jest", "mocha"}
            | {"vitest", "ava", "tap", "tape", "karma", "jasmine", "playwright", "cypress", "c8"}
        ),
        re.compile(
            r"^(package\.json|deno\.jsonc?|bunfig\.toml|pnpm-workspace\.yaml|\.pnpmfile\.cjs)$"
            r"|^\w+\.(config|conf)\.([cm]?[jt]s|json)$|^tsconfig(\.\w+)?\.json$"
            r"|^\.(mocharc|babelrc|swcrc|nycrc|taprc|npmrc|yarnrc|c8rc)(\.\w+)?$"
        ),
        frozenset({"node_modules"}),
    ),
    _MAKE,
    _CMAKE,
    Runner(
        frozenset({"cargo", "rustc"}),
        re.compile(r"^(Cargo\.toml|rust-toolchain(\.toml)?|nextest\.toml)$"),
        frozenset({".cargo", ".config", "target"}),
    ),
    Runner(frozenset({"go", "gotestsum"}), re.compile(r"^go\.(mod|sum|work)$")),
    Runner(
        frozenset({"mvn", "mvnw", "gradle", "gradlew"}),
        re.compile(
            r"^(pom\.xml|(build|settings)\.gradle(\.kts)?|gradle\.properties|mvnw|gradlew)$"
        ),
        frozenset({".mvn"}),
    ),
    Runner(frozenset({"rake", "rspec", "bundle"}), re.compile(r"^(Rakefile|\.rspec)$|\.rake$")),
    Runner(frozenset({"phpunit", "composer"}), re.compile(r"^phpunit\.xml(\.dist)?$")),
)
_NPM_KEYS = frozenset(
    {"scripts", "jest", "mocha", "ava", "tap", "nyc", "c8", "vitest", "babel", "type", "imports"}
    | {"config", "workspaces", "overrides", "resolutions"}
)
"""Keys of package.json by which a test can be changed."""
_CARGO_KEYS = frozenset({"dependencies", "features"})
"""Keys of Cargo.toml by which none can."""


class CommandFiles:
    """Tells the role of each path for one command in one repository."""

    def __init__(self, command: str, workdir: str, repo: Path) -> None:
        """Read the repository's names and the recipes of the command; ``workdir``: its path in the
        command. Raises OSError.
        """
        files = list_files(repo)
        self._repo, self._workdir = repo, workdir.rstrip("/") + "/"
        texts = [command]
        self.words: frozenset[str] = frozenset()
        """Names of the programs that may be started, among other words."""
        self._runners: list[Runner] = []
        self._named: set[str] = set()
        for _ in range(_ROUNDS):
            words = {word for text in texts for word in _WORD.findall(text)}
            self._is_unittest = "unittest" in words
            self.words = frozenset(word.rpartition("/")[2] for word in words)
            self._runners = [runner for runner in _RUNNERS if runner.words & self.words]
            folders = {"", *(self._inside(f) for text in texts for f in _FOLDER.findall(text))}
            own = {*_WORD.findall(command)}
            self._named = {
                found for word in words for found in self._resolve(word, folders, word in own)
            }
            recipes = {path for path in self._named if path.endswith(_SCRIPTS)} | {
                path
                for path in files
                if path.rpartition("/")[0] in folders and self._configures(path)
            }
            more = [command, *filter(None, (_read_text(repo / path) for path in sorted(recipes)))]
            if more == texts:
                break
            texts = more
        self._products: set[str] = set()
        """Words of a Makefile: a new file of that name is a target that is not made any more."""
        if _MAKE in self._runners:
            products = {self._inside(word) for word in words} - {""}
            self._products = {f"{at}/{each}".lstrip("/") for at in folders for each in products}
        collected = {path for path in files if self._is_collected(path)}
        self._folders = {
            path[: found.end()]
            for path in collected
            for found in _PARENT.finditer(path)
            if found[0][:-1] in _TEST_FOLDERS
        }

    def role(self, path: str) -> Role:
        """Return the part of a path, which may be a new one."""
        if self._configures(path) or self._replaces_product(path):
            return "setting"
        folders = path.split("/")[:-1]
        is_test = (
            path in self._named
            or self._is_collected(path)
            or (folders and folders[0] in _TEST_FOLDERS)
            or not _DATA_FOLDERS.isdisjoint(folders)
            or any(path[: found.end()] in self._folders for found in _PARENT.finditer(path))
        )
        return "test" if is_test else ""

    def find_new_folder(self, path: str) -> str:
        """Return the folder of a runner's programs in which a path is, if the repository has none
        of this name; else the path itself.
        """
        at = ""
        for part in path.split("/")[:-1]:
            at = f"{at}{part}/"
            known = any(part in runner.folders for runner in self._runners)
            if (known or at[:-1] in self._products) and not os.path.lexists(self._repo / at):
                return at.rstrip("/")
        return path

    def _replaces_product(self, path: str) -> bool:
        """Return whether a path is new, and in the place of what is built."""
        if os.path.lexists(self._repo / path):
            return False
        if path.endswith(_BUILT) and any(runner in _BUILDERS for runner in self._runners):
            return True
        parents = [path[: found.end() - 1] for found in _PARENT.finditer(path)]
        return any(
            each in self._products and not os.path.lexists(self._repo / each)
            for each in (*parents, path)
        )

    def _configures(self, path: str) -> bool:
        parts = path.split("/")
        return any(
            runner.settings.search(parts[-1]) or not runner.folders.isdisjoint(parts)
            for runner in self._runners
        )

    def _is_collected(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return bool(_TEST_NAME.search(name) or (self._is_unittest and _UNITTEST_NAME.search(name)))

    def _inside(self, word: str) -> str:
        return word.removeprefix(self._workdir).removeprefix("./").strip("/")

    def _resolve(self, word: str, folders: set[str], in_command: bool) -> Iterator[str]:
        """Yield the paths of the repository that a word means, as the path of a script or a check,
        or as a dotted module; ``in_command``: a word of the command, not of a recipe.
        """
        own = self._inside(word)
        for folder in folders:
            path = os.path.normpath(f"{folder}/{own}".lstrip("/"))
            decides = path.endswith(_SCRIPTS) or (in_command and _CHECK_WORD.search(path))
            if decides and (self._repo / path).is_file():
                yield path
            parts = own.split(".") if "/" not in own and self._is_unittest else []
            while parts:
                module = f"{folder}/{'/'.join(parts)}.py".lstrip("/")
                if (self._repo / module).is_file():
                    yield module
                parts.pop()


def list_files(root: Path) -> set[str]:
    """Return the paths of all files and links of a tree but ``.git``; raises OSError."""
    found: set[str] = set()
    for folder, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name != ".git"]
        inside = os.path.relpath(folder, root) + "/"
        links = [name for name in directories if os.path.islink(f"{folder}/{name}")]  # noqa: PTH114
        found |= {f"{inside}{name}".removeprefix("./") for name in (*names, *links)}
    return found


def read_deciding_part(path: Path) -> object:
    """Return what of a setting decides tests: of package.json and Cargo.toml a part, of others all.

    An unreadable file gives a new object, which equals nothing.
    """
    text = _read_text(path)
    if text is None:
        return object()
    try:
        if path.name == "package.json":
            found: Any = json.loads(text)
            return {key: found[key] for key in sorted(_NPM_KEYS & found.keys())}
        if path.name == "Cargo.toml":
            return {k: v for k, v in tomllib.loads(text).items() if k not in _CARGO_KEYS}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return object()
    return text


def _read_text(path: Path) -> str | None:
    """Return the text of a regular file of moderate size, else None."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > TEXT_LIMIT:
            return None
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return None
