"""Write tasks as Harbor directories that need nothing of agentrl.

A written task holds the repository's files at its base commit (without history), a Dockerfile that
puts them into an image, a verifier of the standard library (``written/verify.py``), and the files
of the reference patch. Its reward is 1 if every deciding test passes, else 0.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from runners.sandboxes.tree import copy_tree
from runners.system.processes import atomic_directory
from runners.tasks.contract import CustomGrading, HarborVerifier, ScriptGrading, Task
from runners.tasks.git import describe_failure, git_environment, init_git_dir, run_git
from runners.tasks.grading.canaries.test_texts import UnreadableTestsError, read_test_patch
from runners.tasks.harbor.directory import make_safe_id
from runners.tasks.patches.diffs import read_paths

VERIFY = Path(__file__).with_name("written") / "verify.py"
BASE_IMAGE = "python:3.11-slim"
WORKDIR = "/testbed"
PYTEST = "RUN pip install --no-cache-dir pytest\n"
TEST = "#!/bin/bash\nexec python3 -I /tests/verify.py\n"
SOLVE = """\
#!/bin/bash
set -e
cd "$(dirname "$0")"
{removals}[ ! -d files ] || cp -R files/. {workdir}/
"""
INSTRUCTION = "{problem}\n\nThe repository is in `{workdir}`.\n"
TOML = """\
schema_version = "1.4"

[task]
name = {name}

[metadata]
category = {kind}
split = {split}
source_id = {id}

[verifier]
timeout_sec = 600.0
network_mode = "no-network"

[environment]
workdir = {workdir}
network_mode = "no-network"
"""


class UnwritableTaskError(AgentrlError):
    """A task that has no form as a Harbor directory; the text says why."""

    exit_code = ExitCode.DATA_REFUSED


@dataclass(frozen=True, slots=True)
class WrittenSuite:
    """Result of ``write_suite``."""

    written: tuple[str, ...]
    """Names of the directories."""
    refused: dict[str, str]
    """Reasons of the tasks that are not written, by id."""


def write_suite(tasks: Iterable[Task], root: Path, *, owner: str = "agentrl") -> WrittenSuite:
    """Write tasks whose repositories exist, a directory each; blocks.

    Raises UnwritableTaskError if ``root`` exists already, and OSError.
    """
    if root.exists():
        raise UnwritableTaskError(f"{root} exists already: choose another directory")
    written, refused = [], {}
    with atomic_directory(root) as folder:
        for task in tasks:
            name = make_safe_id(task.id)
            try:
                write_task(task, folder / name, owner)
            except UnwritableTaskError as error:
                shutil.rmtree(folder / name, ignore_errors=True)
                refused[task.id] = str(error)
            else:
                written.append(name)
    return WrittenSuite(tuple(written), refused)


def write_task(task: Task, place: Path, owner: str) -> None:
    """Write one task; raises UnwritableTaskError and OSError."""
    workdir = str(task.workdir or getattr(task.grading, "workdir", WORKDIR))
    config = _describe_grading(task) | {"workdir": workdir}
    for name in ("environment", "tests", "solution"):
        (place / name).mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory(prefix="agentrl-harbor-") as scratch:
            tested, solved = Path(scratch) / "tested", Path(scratch) / "solved"
            _make_tree(task, _test_patch(task), tested)
            _make_tree(task, task.gold_patch, solved)
            _copy_repository(task, place)
            _write_tests(task, place / "tests", config, tested)
            if task.gold_patch:
                _write_solution(task, place / "solution", workdir, solved)
    except (subprocess.SubprocessError, UnreadableTestsError) as error:
        raise UnwritableTaskError(str(error)) from error
    if not task.gold_patch:
        (place / "solution").rmdir()
    name = f"{owner}/{make_safe_id(task.id)}"
    facts = {"name": name, "kind": task.kind, "split": task.split, "id": task.id}
    facts["workdir"] = workdir
    # TOML has JSON's strings, but for characters as two surrogates.
    quoted = {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()}
    (place / "task.toml").write_text(TOML.format(**quoted))
    problem = task.problem_statement.rstrip()
    (place / "instruction.md").write_text(INSTRUCTION.format(problem=problem, workdir=workdir))
    (place / "environment" / "Dockerfile").write_text(_dockerfile(task, workdir, config))


def _describe_grading(task: Task) -> dict[str, Any]:
    """Return the verifier's configuration; raises UnwritableTaskError."""
    config: dict[str, Any] = {
        "protected": task.protected,
        "fail_to_pass": task.fail_to_pass,
        "pass_to_pass": task.pass_to_pass,
        "plugins": task.image is not None,
    }
    match task.grading:
        case HarborVerifier():
            raise UnwritableTaskError("it is a Harbor directory already")
        case CustomGrading():
            raise UnwritableTaskError("a plug-in grades it")
        case ScriptGrading(kind="pytest" | "swebench"):
            _check_pytest_ids(task)
            tests = [p for p in task.protected if p.endswith(".py")]
            fixed = {name.partition("::")[0] for name in task.fail_to_pass}
            arguments = sorted({*tests, *fixed})
            return config | {"kind": "pytest", "arguments": arguments}
        case ScriptGrading(kind="eval_cmd", script=command):
            return config | {"kind": "command", "command": ["bash", "-c", command]}
        case ScriptGrading(kind="f2p_script"):
            argv = ["python3", "/tests/f2p.py"]
            return config | {"kind": "command", "command": argv}
        case ScriptGrading():
            raise UnwritableTaskError("its tests are read by a program that only its set has")
    return config | {"kind": "unittest"}


def _check_pytest_ids(task: Task) -> None:
    for name in (*task.fail_to_pass, *task.pass_to_pass):
        if "::" not in name:
            raise UnwritableTaskError(f"{name!r} is no id of pytest")


def _test_patch(task: Task) -> str:
    match task.grading:
        case ScriptGrading(kind="pytest" | "swebench", script=script):
            return read_test_patch(script)
    return ""


def _make_tree(task: Task, diff: str, target: Path) -> None:
    """Copy the repository's files, and apply a patch to them; raises UnwritableTaskError."""
    copy_tree(task.repo, target)
    shutil.rmtree(target / ".git", ignore_errors=True)
    if not diff:
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        init_git_dir(Path(scratch))
        environment = git_environment(Path(scratch), target)
        done = run_git(environment, "apply", "--whitespace=nowarn", "-", stdin=diff.encode())
    if done.returncode:
        raise UnwritableTaskError(f"a patch of its own does not apply: {describe_failure(done)}")


def _copy_repository(task: Task, place: Path) -> None:
    copy_tree(task.repo, place / "environment" / "repo")
    shutil.rmtree(place / "environment" / "repo" / ".git", ignore_errors=True)


def _write_tests(task: Task, tests: Path, config: dict[str, Any], tree: Path) -> None:
    """Write the verifier and the files that it puts in place: tests, and pytest's own."""
    shutil.copyfile(VERIFY, tests / "verify.py")
    (tests / "test.sh").write_text(TEST)
    (tests / "test.sh").chmod(0o755)
    (tests / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    match task.grading:
        case ScriptGrading(kind="f2p_script", script=program):
            (tests / "f2p.py").write_text(program)
    changed = read_paths(task.gold_patch).all
    kept = set(task.protected)
    if config["kind"] == "pytest":
        kept |= {
            path.relative_to(tree).as_posix()
            for name in ("conftest.py", "pytest.ini", "pytest.toml", ".pytest.toml", ".pytest.ini")
            for path in tree.rglob(name)
        }
    for path in sorted(kept - changed):
        _copy(tree, tests / "files", path)


def _write_solution(task: Task, solution: Path, workdir: str, tree: Path) -> None:
    """Write the files as the reference patch makes them."""
    removed = []
    for path in sorted(read_paths(task.gold_patch).all):
        if (tree / path).exists():
            _copy(tree, solution / "files", path)
        else:
            removed.append(path)
    removals = "".join(f"rm -f {shlex.quote(f'{workdir}/{path}')}\n" for path in removed)
    script = solution / "solve.sh"
    script.write_text(SOLVE.format(removals=removals, workdir=shlex.quote(workdir)))
    script.chmod(0o755)


def _copy(tree: Path, target: Path, path: str) -> None:
    source, place = tree / path, target / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True)
    elif source.is_file():
        shutil.copy2(source, place)


def _dockerfile(task: Task, workdir: str, config: dict[str, Any]) -> str:
    needs_pytest = task.image is None and config["kind"] in ("pytest", "command")
    install = PYTEST if needs_pytest else ""
    return f"FROM {task.image or BASE_IMAGE}\n{install}WORKDIR {workdir}\nCOPY repo/ {workdir}/\n"
