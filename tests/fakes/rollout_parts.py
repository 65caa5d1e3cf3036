"""Fake sandboxes, agents and graders for tests of rollouts: each keeps its contract and fails on
demand.

The gateway and the store of such a test are the real ones.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.sandboxes.contract import (
    CheckCommand,
    CheckOutput,
    CommandResult,
    EgressAttempt,
    Sandbox,
    SandboxError,
    SandboxSpec,
)
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.patches.patch import decode_patch


class HostileError(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@dataclass
class FolderSandbox:
    """A workspace that is only a folder; commands cannot run in it."""

    spec: SandboxSpec
    workspace: Path
    backend: FolderBackend
    workdir: str = "/workspace"
    gateway_url: str | None = None

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Refuse: no test of rollouts needs a command."""
        raise SandboxError("a folder runs no commands")

    async def run_check(self, check: CheckCommand) -> CheckOutput:
        """Refuse, like ``run``."""
        raise SandboxError("a folder runs no commands")

    @asynccontextmanager
    async def on_host(
        self, *, leave_out: Collection[str] = (), only: Collection[str] = ()
    ) -> AsyncIterator[Path]:
        """Yield the folder."""
        yield self.workspace

    def egress_attempts(self) -> tuple[EgressAttempt, ...]:
        """Return one attempt that was refused."""
        return (EgressAttempt("pypi.org", 443, False, 2),) if self.backend.tries_hosts else ()

    async def close(self) -> None:
        """Remove the folder, or fail if the backend is configured to."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        self.backend.alive.discard(self.spec.name)
        if self.backend.fails_to_close:
            raise OSError("device busy {} %s")


@dataclass
class FolderBackend:
    """Creates folders; the first ``failures`` creations fail."""

    root: Path
    failures: int = 0
    pushes_back: int = 0
    hangs: bool = False
    fails_to_close: bool = False
    alive: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)
    has_images: bool = True
    tries_hosts: bool = False
    """Its sandboxes report an attempt to reach another host."""
    images: list[tuple[str | None, str | None]] = field(default_factory=list)
    """Image and work directory of each sandbox that was requested."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Copy the source."""
        self.made.append(spec.name)
        self.images.append((spec.image, spec.workdir))
        if self.hangs:
            await asyncio.sleep(3600)
        if len(self.made) <= self.failures:
            raise SandboxError("no room for a sandbox {} %d")
        if len(self.made) <= self.pushes_back:
            raise SandboxError("too many sandboxes a second", pushed_back=True)
        workspace = self.root / spec.name
        assert spec.source is not None
        shutil.copytree(spec.source, workspace)
        self.alive.add(spec.name)
        return FolderSandbox(spec, workspace, self, gateway_url=spec.gateway_url)

    async def build_image(self, context: Path, tag: str, *, deadline_s: float) -> None:
        """Build nothing."""

    def guarantees(self) -> dict[str, str]:
        """Promise nothing."""
        return {}

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """Find nothing: a dead driver leaves no folders."""

    async def close(self) -> None:
        """Forget the folders that are left."""
        self.alive.clear()


@dataclass
class CallingHarness:
    """An agent that takes one turn and reports that it has finished.

    ``trouble`` maps the number of a run to an exception to raise or a result to return instead.
    """

    trouble: Callable[[int], BaseException | HarnessResult | None] = lambda _: None
    hangs: bool = False
    runs: int = 0
    busy: int = 0
    most_busy: int = 0

    def mounts(self) -> dict[str, Path]:
        """Need nothing."""
        return {}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Take one turn through the real gateway, then end as configured."""
        number, self.runs = self.runs, self.runs + 1
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            if self.hangs:
                await asyncio.sleep(3600)
            trouble = self.trouble(number)
            if isinstance(trouble, BaseException):
                raise trouble
            if trouble is not None:
                return trouble
            await self._turn(sandbox, context)
            async with sandbox.on_host() as workspace:  # a folder is on the host
                (workspace / "answer.txt").write_text(f"answer {number}\n")
            return make_result(OutcomeCode.POLICY_FINISHED, "all done")
        finally:
            self.busy -= 1

    async def _turn(self, sandbox: Sandbox, context: HarnessContext) -> None:
        body = {
            "model": context.model,
            "max_tokens": 50,
            "messages": [{"role": "user", "content": context.prompt}],
        }
        async with (
            aiohttp.ClientSession(trust_env=False) as http,
            http.post(
                f"{sandbox.gateway_url}/v1/messages",
                json=body,
                headers={"x-api-key": context.api_key},
            ) as response,
        ):
            assert response.status == 200, await response.text()
            await response.read()


def make_result(code: OutcomeCode, message: str = "") -> HarnessResult:
    """Return the result that an agent program reports."""
    return HarnessResult(code, message, None, 0, 0.1, f"output of {code}")


class PatchGrader:
    """A grader of patches alone: a task's reference too is a patch."""

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade a patch."""
        raise NotImplementedError

    async def grade_end_state(
        self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float
    ) -> Verdict:
        """Refuse."""
        raise AssertionError("no task of this test is graded in its sandbox")

    async def grade_reference(
        self, task: Task, *, solve: bool, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the reference patch or the empty one."""
        result = RolloutResult.of_patch(decode_patch(task.gold_patch if solve else "", {}))
        return await self.grade(task, result, name=name, deadline_s=deadline_s)


@dataclass
class ListedGrader(PatchGrader):
    """Returns the next verdict of a list, and the last one again when the list is used up."""

    verdicts: list[Verdict | VerdictKind | BaseException] = field(
        default_factory=lambda: [VerdictKind.SOLVED]
    )
    graded: Counter[str] = field(default_factory=Counter)
    results: dict[str, RolloutResult] = field(default_factory=dict)
    """What was graded, by name."""

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        """Give the next verdict."""
        self.results[name] = result
        index = min(sum(self.graded.values()), len(self.verdicts) - 1)
        self.graded[name] += 1
        verdict = self.verdicts[index]
        if isinstance(verdict, BaseException):
            raise verdict
        if isinstance(verdict, Verdict):
            return verdict
        passed = int(verdict is VerdictKind.SOLVED)
        return Verdict(verdict, passed, 1, 1, 1, f"it is {verdict}", "", 0.01)
