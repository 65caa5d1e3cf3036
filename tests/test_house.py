"""The house: what may stand at the top level, and what every file keeps to."""

from __future__ import annotations

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"cli", "conf", "launch", "runners"}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager", "base"}


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
        pytest.skip("no git checkout")
    found = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in found if path.is_file())


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def test_there_are_four_packages_and_no_fifth() -> None:
    tops = {path.relative_to(ROOT).parts[0] for path in files() if path.suffix == ".py"}
    assert tops == PACKAGES | {"tests"}


def test_the_build_and_the_import_contract_know_all_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    found = project["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in found} == PACKAGES
    assert set(project["importlinter"]["root_packages"]) == PACKAGES


def test_every_package_explains_itself() -> None:
    for package in PACKAGES | {"tests"}:
        assert (ROOT / package / "README.md").is_file(), package


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(lines(ROOT / "README.md")) <= 200


def test_the_readme_names_every_dependency() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for line in project["dependencies"]:
        name = re.split(r"[<>=!~]", line)[0]
        assert f"`{name}`" in readme, name


def test_there_are_a_changelog_and_a_licence() -> None:
    assert lines(ROOT / "CHANGELOG.md")[0] == "# Changelog"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")


def test_no_file_names_a_directory_of_somebody_s_machine() -> None:
    private = re.compile(rb"/(?:home|work|root|Users)/[A-Za-z0-9_.-]+/")
    for path in files():
        content = path.read_bytes()
        found = private.search(content) if b"\0" not in content else None
        assert found is None, f"{path.relative_to(ROOT)}: {found and found.group()!r}"


def test_no_module_is_named_after_nothing() -> None:
    for path in files():
        names = {*path.relative_to(ROOT).parts[:-1], path.stem}
        assert not names & FORBIDDEN_NAMES, path


def test_yaml_has_no_tabs_and_ends_with_a_newline() -> None:
    for path in files():
        if path.suffix == ".yaml":
            text = path.read_text("utf-8")
            assert "\t" not in text, path
            assert text.endswith("\n"), path
