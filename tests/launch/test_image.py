"""The recipe for slime's image, and the versions that our own tests run with."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from launch.requirements import OWN

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "launch" / "image"
PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_40"
"""What SGLang's image has."""


def read_pins(file: Path) -> dict[str, Version]:
    """Return the versions of a file of ``NAME==VERSION`` lines."""
    lines = [line for line in file.read_text().splitlines() if line and line[0] != "#"]
    pairs = [line.split("==") for line in lines]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def own_requirements(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][e] for e in extras)]
    return [Requirement(line) for lines in lists for line in lines]


def unmet(requirements: list[Requirement], pins: dict[str, Version]) -> list[str]:
    found = {r.name: pins.get(canonicalize_name(r.name)) for r in requirements}
    return [
        f"{r}: {found[r.name]}"
        for r in requirements
        if (version := found[r.name]) is None or not r.specifier.contains(version)
    ]


def read_image() -> dict[str, Version]:
    return read_pins(IMAGE / "packages.txt") | read_pins(IMAGE / "added.txt")


def test_slimes_image_with_what_we_add_meets_our_requirements() -> None:
    assert unmet(own_requirements("ray", "parquet"), read_image()) == []


def test_the_image_has_what_our_requirements_require_themselves() -> None:
    """By the metadata of those packages here that have the image's versions: in `.ci/run`, where
    the test also runs with the image's versions, of all.
    """
    pins, faults = read_image(), []
    waiting: list[tuple[str, frozenset[str]]] = [(OWN, frozenset())]
    seen = set(waiting)
    for name, extras in waiting:
        installed = distribution(name)
        known = name == OWN or pins.get(name) == Version(installed.version)
        for line in installed.requires or ():
            needed = Requirement(line)
            marker = needed.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                continue
            pin = pins.get(canonicalize_name(needed.name))
            if known and (pin is None or not needed.specifier.contains(pin)):
                faults.append(f"{name} needs {needed}: the image has {pin}")
            following = (canonicalize_name(needed.name), frozenset(needed.extras))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    assert len(seen) > 60
    assert faults == []


def test_nothing_that_the_image_was_built_for_is_replaced() -> None:
    packages, added = read_pins(IMAGE / "packages.txt"), read_pins(IMAGE / "added.txt")
    replaced = {name for name in added if name in packages}
    assert replaced == {"e2b", "connectrpc", "protobuf-py", "protobuf-py-ext", "pyqwest"}
    assert str(packages["numpy"]) == "1.26.4"
    assert str(packages["torch"]) == "2.11.0"
    assert str(packages["transformers"]) == "5.12.1"


def test_the_image_is_built_without_the_resolver_and_then_checked() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    commands = re.findall(r"pip install [^&\n]*", text)
    assert len(commands) == 2
    assert all("--no-deps" in command for command in commands)
    assert "python -m launch.requirements" in text


def test_the_constraints_are_exact_and_cover_what_the_tests_need() -> None:
    pins = read_pins(ROOT / "constraints.txt")
    assert unmet(own_requirements("dev", "parquet", "swebench", "ray", "smg"), pins) == []
    assert not [name for name, version in pins.items() if version.local]
    assert str(pins["torch"]) == "2.13.0"


def test_the_installations_of_readme_and_ci_use_the_constraints() -> None:
    for name in ("README.md", ".ci/environment.sh", ".ci/nightly", "docs/contributing.md"):
        commands = re.findall(r"install [^|\n]*-e .*", (ROOT / name).read_text())
        assert commands, name
        assert all("-c " in command for command in commands), name


@pytest.mark.network
def test_a_resolver_adds_to_the_image_what_we_list(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is missing (pip install uv)")
    # An output file that exists is what uv prefers: versions change only where they must.
    out, packages = tmp_path / "out.txt", (IMAGE / "packages.txt").read_text()
    out.write_text(packages)
    fixed = tmp_path / "fixed.txt"
    fixed.write_text("".join(re.findall(r"^(?:numpy|scipy)==.*\n", packages, re.M)))
    done = subprocess.run(
        [
            *(uv, "pip", "compile", str(ROOT / "pyproject.toml"), "--override", str(fixed)),
            *("--python-version", PYTHON, "--python-platform", PLATFORM, "--no-python-downloads"),
            *("--no-annotate", "--no-header", "--output-file", str(out)),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    resolved = read_pins(out)
    packages_there = read_pins(IMAGE / "packages.txt")
    new = {n: v for n, v in resolved.items() if packages_there.get(n) != v}
    assert new == read_pins(IMAGE / "added.txt")
