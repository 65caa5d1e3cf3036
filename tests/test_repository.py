"""Conventions of the repository that hold for every file: its layout, its words, its imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"cli", "conf", "launch", "runners"}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager", "base"}
README_LINES = 60
LONGEST_LINE = 200
RUNS_ELSEWHERE = {
    "slime",
    "minisweagent",
    "litellm",
    "native",
    "relay",
    "agentrl_channel",
    "agentrl_guard",
}
"""Modules of the program inside which a file runs: slime, mini-swe-agent, our agent's and our
graders' sandbox.
"""
PART_OF = {"pydantic_core": "pydantic", "connectrpc": "e2b", "yarl": "aiohttp"}
"""Modules in the public interface of a declared package, which pins their version."""


@cache
def files() -> tuple[Path, ...]:
    """Return what git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in found if path.is_file())


@cache
def sources() -> tuple[tuple[Path, ast.Module], ...]:
    """Return the modules of the source packages: their paths below the root and syntax trees."""
    found = (path.relative_to(ROOT) for path in files() if path.suffix == ".py")
    return tuple(
        (path, ast.parse((ROOT / path).read_text("utf-8")))
        for path in found
        if path.parts[0] in PACKAGES
    )


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def distribution(requirement: str) -> str:
    """Return the normalized name in a requirement such as ``"e2b>=2,<3"``."""
    return re.split(r"[<>=!~\[ ]", requirement)[0].lower().replace("_", "-")


def test_there_are_four_packages_and_no_fifth() -> None:
    tops = {path.relative_to(ROOT).parts[0] for path in files() if path.suffix == ".py"}
    assert tops == PACKAGES | {"examples", "tests"}


def test_the_build_and_the_import_contract_know_all_packages() -> None:
    tools = project()["tool"]
    found = tools["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in found} == {*PACKAGES, "agentrl"}
    assert set(tools["importlinter"]["root_packages"]) == {*PACKAGES, "agentrl"}


def test_every_package_has_a_readme() -> None:
    for package in PACKAGES | {"tests"}:
        assert (ROOT / package / "README.md").is_file(), package


def contracts(kind: str) -> list[dict[str, Any]]:
    """Return the import contracts of a type."""
    every = project()["tool"]["importlinter"]["contracts"]
    return [contract for contract in every if contract["type"] == kind]


def test_the_readme_of_a_district_names_its_face_as_the_contract_does() -> None:
    faces = contracts("protected")
    assert len(faces) == 11
    for contract in faces:
        (district,) = contract["protected_modules"]
        held = {line.removeprefix(f"** -> {district}.") for line in contract["ignore_imports"]}
        readme = (ROOT / district.replace(".", "/") / "README.md").read_text("utf-8")
        named = readme.partition("\n## Face\n\n")[2].partition("\n\n")[0]
        assert set(re.findall(r"`([^`]+)`", named)) == held, district


def test_the_drawing_of_the_districts_is_that_of_the_contract() -> None:
    layers = max((contract["layers"] for contract in contracts("layers")), key=len)
    drawn = [line.replace("runners.", "") for line in layers if line != "runners.slime"]
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert "\n".join(drawn) in page


def test_every_folder_of_the_runners_has_a_short_readme() -> None:
    folders = {
        path.parts[1] for path, _ in sources() if len(path.parts) > 2 and path.parts[0] == "runners"
    }
    for folder in sorted(folders):
        readme = ROOT / "runners" / folder / "README.md"
        assert readme.is_file(), folder
        assert len(lines(readme)) <= README_LINES, folder


def test_the_readme_is_short() -> None:
    assert len(lines(ROOT / "README.md")) <= 80


def test_no_line_of_markdown_is_long() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files()
        if path.suffix == ".md"
        for number, line in enumerate(lines(path), start=1)
        if len(line) > LONGEST_LINE
    ]
    assert not found, "\n".join(found)


def test_the_readme_names_every_dependency() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for requirement in project()["project"]["dependencies"]:
        name = distribution(requirement)
        assert f"`{name}`" in readme, name


def test_there_are_a_changelog_and_a_licence() -> None:
    assert lines(ROOT / "CHANGELOG.md")[0] == "# Changelog"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A question word ("What …", "Whether …") names a thing without saying what it is or does."""
    question = re.compile(r"(What|How|Which|Where|Whose|Who|Whether)\b")
    found = [
        f"{path}:{node.lineno}: {node.value.value.strip()}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and question.match(node.value.value.strip())
    ]
    assert not found, "\n".join(found)


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports, late imports too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_every_import_is_a_declared_dependency() -> None:
    tables = project()["project"]
    extras = tables["optional-dependencies"]
    declared = {distribution(line) for line in tables["dependencies"]}
    for name, extra in extras.items():
        declared |= {distribution(line) for line in extra} if name != "dev" else set()
    owners = packages_distributions()
    known = PACKAGES | {"agentrl"} | RUNS_ELSEWHERE | sys.stdlib_module_names
    undeclared = {
        f"{path} imports {top}"
        for path, tree in sources()
        for top in {name.partition(".")[0] for name in imported(tree)} - known
        if not {distribution(name) for name in owners.get(top, [top])} & declared
        and PART_OF.get(top) not in declared
    }
    assert not undeclared


def test_tests_do_not_import_tests() -> None:
    imports = re.compile(r"^\s*(?:from|import) +tests\.(?:\w+\.)*test_\w+", re.MULTILINE)
    found = {
        path.relative_to(ROOT): lines
        for path in files()
        if path.suffix == ".py" and (lines := imports.findall(path.read_text("utf-8")))
    }
    assert not found


def test_no_file_names_a_directory_of_somebody_s_machine() -> None:
    private = re.compile(rb"/(?:home|work|root|Users)/[A-Za-z0-9_.-]+/")
    for path in files():
        content = path.read_bytes()
        found = private.search(content) if b"\0" not in content else None
        assert found is None, f"{path.relative_to(ROOT)}: {found and found.group()!r}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    for path in files():
        names = {*path.relative_to(ROOT).parts[:-1], path.stem}
        assert not names & FORBIDDEN_NAMES, path


def test_yaml_has_no_tabs_and_ends_with_a_newline() -> None:
    for path in files():
        if path.suffix == ".yaml":
            text = path.read_text("utf-8")
            assert "\t" not in text, path
            assert text.endswith("\n"), path
