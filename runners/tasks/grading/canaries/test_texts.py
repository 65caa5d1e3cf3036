"""Read the test files of a task, and put other ones in their place.

The paths, the command and the judge stay what they are: the code under test cannot tell a changed
test from the real one without knowing the right answer.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from conf.errors import AgentrlError
from runners.tasks.contract import CustomGrading, HarborVerifier, ScriptGrading, Task
from runners.tasks.git import describe_failure, git_environment, init_git_dir, run_git
from runners.tasks.patches.diffs import read_paths
from runners.tasks.patches.protection import list_tests

PROGRAM = "program"
"""Path that stands for the program of an ``f2p_script`` task, which is no file."""
FILE_LIMIT = 1 << 20
FILES_LIMIT = 200
_HEREDOC = re.compile(r"^git apply [^\n]*<<\s*(['\"]?)(\w+)\1\n(.*?\n)\2$", re.S | re.M)


class UnreadableTestsError(AgentrlError):
    """The tests of a task cannot be read, so none can be changed."""


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """A task whose tests are other ones."""

    task: Task
    files: Mapping[str, bytes]
    """Files to write into the work tree after the patch, in place of protected ones."""


Source = Literal["program", "patch", "files"]
"""Place of a task's tests: its script is one, or applies a patch with them, or runs them from the
protected files of the repository.
"""


def find_source(task: Task) -> Source:
    """Return the place of a task's tests; raises UnreadableTestsError."""
    match task.grading:
        case HarborVerifier():
            raise UnreadableTestsError("its verifier is a program of the task's own")
        case CustomGrading():
            raise UnreadableTestsError("a plug-in grades it")
        case ScriptGrading(kind="status_map" | "multi_swe"):
            raise UnreadableTestsError("the tests are only in the image")
        case ScriptGrading(kind="f2p_script"):
            return "program"
        case ScriptGrading(kind="pytest" | "swebench"):
            return "patch"
        case ScriptGrading(kind="log_parser", script=script) if _HEREDOC.search(script):
            return "patch"
    return "files"


def read_tests(task: Task) -> dict[str, bytes]:
    """Return the Python test files of a task as they are when its tests run, by path.

    Blocks. Raises UnreadableTestsError.
    """
    source = find_source(task)
    if source == "files":
        return _read(task, task.protected) or _read(task, list_tests(task))
    assert isinstance(task.grading, ScriptGrading)
    if source == "program":
        return {PROGRAM: task.grading.script.encode()}
    return _apply(task, read_test_patch(task.grading.script))


def place_tests(task: Task, files: Mapping[str, bytes]) -> PlacedTask:
    """Return the task with these test files; blocks, raises UnreadableTestsError.

    The real tests are placed in this way, too: neither the form of a test patch nor the time of a
    file tells them from others.
    """
    source = find_source(task)
    if source == "files":
        return PlacedTask(task, files)
    grading = task.grading
    assert isinstance(grading, ScriptGrading)
    if source == "program":
        script = files[PROGRAM].decode()
    else:
        old = read_test_patch(grading.script)
        script = grading.script.replace(old, _diff(task, old, files), 1)
    return PlacedTask(replace(task, grading=replace(grading, script=script)), {})


def _read(task: Task, paths: tuple[str, ...]) -> dict[str, bytes]:
    """Return the Python files at paths of the repository; a directory's are all below it."""
    found: dict[str, bytes] = {}
    for path in paths:
        for root in (task.repo, task.hidden_tests):
            if root is not None:
                found |= _read_below(root, path)
    return found


def _read_below(root: Path, path: str) -> dict[str, bytes]:
    place = root / path
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return {
        file.relative_to(root).as_posix(): file.read_bytes()
        for file in files[:FILES_LIMIT]
        if file.suffix == ".py"
        and file.is_file()
        and not file.is_symlink()
        and file.stat().st_size <= FILE_LIMIT
    }


def read_test_patch(script: str) -> str:
    """Return the patch with the tests of an eval script; raises UnreadableTestsError."""
    found = _HEREDOC.search(script)
    if found is None:
        raise UnreadableTestsError("the eval script applies no test patch")
    return found[3]


def _apply(task: Task, diff: str) -> dict[str, bytes]:
    """Return the Python files of a test patch after it is applied."""
    with tempfile.TemporaryDirectory(prefix="agentrl-tests-") as folder:
        work = Path(folder)
        environment = _start(task, diff, work)
        _git(environment, "apply", "--whitespace=nowarn", "-", stdin=_encode(diff))
        return {
            path: (work / path).read_bytes()
            for path in sorted(read_paths(diff).all)
            if path.endswith(".py") and (work / path).is_file()
        }


def _diff(task: Task, old: str, files: Mapping[str, bytes]) -> str:
    """Return the test patch that leads to changed files."""
    with tempfile.TemporaryDirectory(prefix="agentrl-tests-") as folder:
        work = Path(folder)
        environment = _start(task, old, work)
        _git(environment, "add", "--all", "--force")
        before = _git(environment, "write-tree").decode().strip()
        _git(environment, "apply", "--whitespace=nowarn", "-", stdin=_encode(old))
        for path, content in files.items():
            (work / path).write_bytes(content)
        _git(environment, "add", "--all", "--force")
        options = ("--cached", "--binary", "--no-color", "--no-ext-diff", "--no-renames")
        text = _git(environment, "diff", *options, before)
        return text.decode("utf-8", "surrogateescape")


def _start(task: Task, diff: str, work: Path) -> dict[str, str]:
    """Copy the files that a test patch changes; return the environment of git there."""
    for path in read_paths(diff).existing:
        source, target = task.repo / path, work / path
        if source.is_file() and ".." not in Path(path).parts:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    git_dir = work / ".git"
    git_dir.mkdir()
    init_git_dir(git_dir)
    return git_environment(git_dir, work)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _git(environment: dict[str, str], *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        done = run_git(environment, *arguments, stdin=stdin)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnreadableTestsError(f"git cannot read the tests: {error}") from error
    if done.returncode:
        raise UnreadableTestsError(f"git cannot read the tests: {describe_failure(done)}")
    return done.stdout
