"""Name the tests of what a change touches, the nearest first.

A change is what differs from the branch that it will be merged into: the upstream, else
``origin/main``; where it is that branch itself, its last commit.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
UPSTREAMS = ("@{upstream}", "origin/main")
ANY_TEST = ("pyproject.toml", "constraints.txt")
"""Files that every test depends on."""
GUIDES = "tests/test_guides.py"
"""Runs the commands of the pages in ``docs/``."""


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the changed paths below the root; none where git knows no earlier commit."""
    for ref in (*UPSTREAMS, "HEAD~1"):
        base = _git(root, "merge-base", "HEAD", ref)
        if base and (ref == "HEAD~1" or base != _git(root, "rev-parse", "HEAD")):
            # without a second commit: what is not committed yet counts, too
            return [line for line in _git(root, "diff", "--name-only", base).split("\n") if line]
    return []


def touched_tests(files: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Return test files and folders: those named like a changed file, then their folders."""
    files = list(files)
    nearest = [path for file in files for path in _own_tests(Path(file), root)]
    folders = [folder for file in files for folder in _folders(Path(file))]
    folders.sort(key=lambda folder: -len(folder.parts))
    wanted = [*nearest, *folders, *([Path("tests")] if set(files) & set(ANY_TEST) else [])]
    return [root / path for path in dict.fromkeys(wanted) if (root / path).exists()]


def _own_tests(file: Path, root: Path) -> Iterator[Path]:
    """Yield a changed test, the tests of a changed module, those that a changed fake is in."""
    if file.parts[0] == "docs":
        yield Path(GUIDES)
    elif file.parts[0] != "tests":
        yield Path("tests", *file.parts[:-1], f"test_{file.stem}.py")
    elif file.name.startswith("test_"):
        yield file
    elif file.suffix == ".py":
        module = ".".join(file.with_suffix("").parts)
        for test in sorted((root / "tests").rglob("test_*.py")):
            if module in test.read_text("utf-8"):
                yield test.relative_to(root)


def _folders(file: Path) -> Iterator[Path]:
    """Yield the folder of tests that mirrors a file's, and those around it below its package."""
    parts = file.parts[1:-1] if file.parts[0] == "tests" else file.parts[:-1]
    whole = 1 if parts[:1] == ("runners",) else 0  # all of tests/runners would be everything
    for length in range(len(parts), whole, -1):
        yield Path("tests", *parts[:length])


def _git(root: Path, *arguments: str) -> str:
    """Return what a git command prints; nothing if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
