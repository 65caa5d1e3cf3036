"""The suite for graders: scores of known patches, and nothing that a policy can do about them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.testing.loop_tests import LoopTests, in_loop
from agentrl.testing.plugin_target import PluginTests
from conf.compose import compose
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import (
    TIMED_OUT,
    CommandResult,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.sandboxes.wrappers import ForwardingSandbox, open_sandbox
from runners.system.plugins import PluginFailedError
from runners.tasks.contract import CustomGrading, Task, Verdict, VerdictKind
from runners.tasks.grading import JUDGES, SandboxGrader
from runners.tasks.patches.patch import capture_apart

Files = Mapping[str, str | bytes]
"""Contents by path in the repository."""
RUBBISH: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "binary data": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe\xed\xa0\x80" * 100),
    "a megabyte": lambda path: path.write_bytes(b"rubbish " * (1 << 17)),
    "a link to nowhere": lambda path: path.symlink_to("no/such/file"),
    "a directory": lambda path: path.mkdir(),
}
"""Contents that a policy may leave instead of its work."""
OUTPUTS = {
    "nothing": b"",
    "binary data": bytes(range(256)) * 16,
    "no UTF-8": b"\xff\xfe\xed\xa0\x80" * 100,
    "a flood": b"x" * 65536,
}
_names = (f"grade-{number}" for number in itertools.count())


class AlteredSandbox(ForwardingSandbox):
    """A sandbox whose commands end as a test wants; it keeps their deadlines."""

    def __init__(self, real: Any, alter: Callable[[CommandResult], CommandResult]) -> None:
        super().__init__(real)
        self.alter = alter
        self.deadlines: list[float] = []

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        """Run a command and change its result."""
        self.deadlines.append(options["deadline_s"])
        return self.alter(await super().run(argv, **options))


class GraderConformance(PluginTests, LoopTests):
    """Tests of a grader: its scores, and that they cannot be moved."""

    settings: ClassVar[Sequence[str]] = ()
    """KEY=VALUE of the run's configuration: ``sandbox=…``."""
    row: ClassVar[Mapping[str, Any]] = {}
    """The task's row, as the grader gets it."""
    repository: ClassVar[Files] = {"README.md": "A task.\n"}
    """Files before the agent works."""
    honest: ClassVar[Files] = {}
    """Files that an agent writes who solves the task."""
    honest_score: ClassVar[float] = 1.0
    empty_score: ClassVar[float] = 0.0
    """Score of an agent that writes nothing."""
    broken: ClassVar[Files] = {}
    """Files of an agent that tries and fails."""
    broken_score: ClassVar[float] = 0.0
    cheats: ClassVar[Mapping[str, Files]] = {}
    """Further changes, by name, none of which may solve the task: printed claims, edited tests."""
    grade_s: ClassVar[float] = 60.0
    backend: ClassVar[SandboxBackend]

    def make_task(self, repo: Path, commit: str) -> Task:
        """Return the task; a grader that is built in needs another one."""
        return Task(
            id="task",
            split="train",
            repo=repo,
            base_commit=commit,
            problem_statement="Do it.",
            fail_to_pass=(),
            pass_to_pass=(),
            protected=tuple(self.row.get("protected", ())),
            gold_patch="",
            kind="custom",
            grading=CustomGrading(
                self.configure("graders").model_dump_json(), json.dumps(dict(self.row))
            ),
        )

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _open_backend(
        cls, _event_loop: None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[None]:
        config = compose(["sandbox=local", "sandbox.warm=0", *cls.settings])
        cls.backend = make_backend(config.sandbox, tmp_path_factory.mktemp("grader"))
        yield
        cls.runner.run(cls.backend.close())

    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        """Return the task, with its repository below the test's directory."""
        repo = tmp_path / "pristine"
        repo.mkdir()
        write_files(repo, self.repository)
        _git(repo, "init", "-q")
        _git(repo, "add", "-f", ".")
        _git(repo, "commit", "-q", "--allow-empty", "-m", "base")
        return self.make_task(repo, _git(repo, "rev-parse", "HEAD"))

    @in_loop
    async def test_honest_empty_and_broken_patches_score_as_their_author_says(
        self, task: Task, tmp_path: Path
    ) -> None:
        expected = {"honest": self.honest_score, "empty": self.empty_score}
        expected |= {"broken": self.broken_score} if self.broken else {}
        patches: dict[str, Files] = {"honest": self.honest, "empty": {}, "broken": self.broken}
        assert self.honest, f"{type(self).__name__}.honest has to name the files of a solution"
        found = {
            name: _score(await self._grade(task, tmp_path / name, patches[name]))
            for name in expected
        }
        assert found == pytest.approx(expected)

    @in_loop
    async def test_the_same_patch_scores_the_same_again(self, task: Task, tmp_path: Path) -> None:
        scores = {
            _score(await self._grade(task, tmp_path / str(number), self.broken or self.honest))
            for number in range(3)
        }
        assert len(scores) == 1, f"one patch, {len(scores)} scores: {sorted(scores)}"

    @pytest.mark.parametrize("rubbish", list(RUBBISH))
    @in_loop
    async def test_rubbish_in_place_of_the_work_is_unsolved(
        self, task: Task, tmp_path: Path, rubbish: str
    ) -> None:
        def spoil(workspace: Path) -> None:
            write_files(workspace, self.honest)
            for name in self.honest:
                remove_tree(workspace / name)
                RUBBISH[rubbish](workspace / name)

        _check_unsolved(await self._grade_change(task, tmp_path, spoil), f"{rubbish} in its files")

    @in_loop
    async def test_no_cheat_of_its_author_is_paid(self, task: Task, tmp_path: Path) -> None:
        for name, files in self.cheats.items():
            _check_unsolved(await self._grade(task, tmp_path / name, files), name)

    @pytest.mark.parametrize("output", list(OUTPUTS))
    @in_loop
    async def test_no_output_of_a_command_makes_it_fail(self, task: Task, output: str) -> None:
        def alter(result: CommandResult) -> CommandResult:
            return CommandResult(result.exit_code, OUTPUTS[output], OUTPUTS[output], 0.1)

        async with self._altered(task, alter) as sandbox:
            verdict = await self._judge(task, sandbox)
        assert verdict.kind is not VerdictKind.SOLVED, f"{output} on stdout: {verdict.reason}"

    @in_loop
    async def test_commands_that_run_out_of_time_solve_nothing(self, task: Task) -> None:
        late = CommandResult(TIMED_OUT, b"", b"", self.grade_s, timed_out=True)
        async with self._altered(task, lambda _: late) as sandbox:
            verdict = await self._judge(task, sandbox)
        assert verdict.kind is not VerdictKind.SOLVED, f"out of time: {verdict.reason}"
        longest = max(sandbox.deadlines, default=0.0)
        assert longest <= self.grade_s, (
            f"a command may take {longest:g} s, and the grading has {self.grade_s:g} s: pass on "
            "deadline_s"
        )

    @in_loop
    async def test_a_lost_sandbox_is_no_grade(self, task: Task) -> None:
        def lose(_: CommandResult) -> CommandResult:
            raise SandboxError("the machine of the sandbox is gone")

        async with self._altered(task, lose) as sandbox:
            try:
                verdict = await self._judge(task, sandbox)
            except SandboxError:
                return
        if sandbox.deadlines:
            assert verdict.kind is VerdictKind.INFRA, (
                f"the sandbox was lost, and the grader gave a score ({verdict.reason}): let "
                "SandboxError through"
            )

    # --- parts ----------------------------------------------------------------------------------

    async def _grade(self, task: Task, place: Path, files: Files) -> Verdict:
        return await self._grade_change(task, place, lambda space: write_files(space, files))

    async def _grade_change(
        self, task: Task, place: Path, change: Callable[[Path], object]
    ) -> Verdict:
        """Return the verdict on a change of the workspace, graded as in a run."""
        place.mkdir(exist_ok=True)
        copy_tree(task.repo, place / "workspace")
        change(place / "workspace")
        patch = await capture_apart(task, place / "workspace")
        return await SandboxGrader(self.backend).grade(
            task, patch, name=next(_names), deadline_s=self.grade_s
        )

    @asynccontextmanager
    async def _altered(
        self, task: Task, alter: Callable[[CommandResult], CommandResult]
    ) -> AsyncIterator[AlteredSandbox]:
        mounts = dict(JUDGES[task.grading.kind].mounts())
        spec = SandboxSpec(next(_names), task.repo, "none", mounts=mounts)
        async with open_sandbox(self.backend, spec) as sandbox:
            yield AlteredSandbox(sandbox, alter)

    async def _judge(self, task: Task, sandbox: AlteredSandbox) -> Verdict:
        try:
            judge = JUDGES[task.grading.kind]
            return await judge.judge(task, sandbox, self.grade_s)
        except PluginFailedError as error:
            pytest.fail(str(error))


def write_files(directory: Path, files: Files) -> None:
    """Write files below a directory."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        (directory / name).write_bytes(data)


def _score(verdict: Verdict) -> float:
    assert verdict.kind is not VerdictKind.INFRA, f"no grade: {verdict.reason}"
    if verdict.rewards:
        return dict(verdict.rewards)["reward"]
    return 1.0 if verdict.kind is VerdictKind.SOLVED else verdict.part


def _check_unsolved(verdict: Verdict, cause: str) -> None:
    assert verdict.kind is VerdictKind.UNSOLVED, f"{cause}: {verdict.kind}, {verdict.reason}"
    assert "and not without it" not in verdict.reason, f"{cause}: {verdict.reason}"


def _git(repo: Path, *arguments: str) -> str:
    who = ["-c", "user.name=kit", "-c", "user.email=kit@example.org"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(repo), *who, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout.strip()
