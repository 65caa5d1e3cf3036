"""Measure the cost of a rollout outside the model: sandbox, agent start, patch, grade.

    python -m tests.benchmarks.bench_sandbox
    python -m tests.benchmarks.bench_sandbox --isolation unshare --count 20 --at-once 4

Wall time is per piece with nothing else running; CPU time counts this process and everything it
started. The repositories are those of the built-in family; the gateway answers from a script. The
last rows are of remote sandboxes: a group's files from one archive and from one each; where podman
runs, also containers that are filled, and such of an image committed with the files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conf.sections.harness import NativeHarnessConfig
from conf.sections.sandbox import LocalSandboxConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext
from runners.rollouts.harnesses.native import NativeHarness
from runners.sandboxes.contract import Sandbox, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.remote.archive_cache import ArchiveCache
from runners.sandboxes.remote.containers import ContainerBackend
from runners.sandboxes.remote.long_script import START
from runners.sandboxes.remote.sandbox import RemoteSandbox
from runners.tasks.bugfix import build
from runners.tasks.contract import Task, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.workspace_diff import diff_workspace
from tests.fakes.podman import find_obstacle, podman_engine
from tests.fakes.sandbox_backends import podman_settings
from tests.fakes.scripted_gateway import Reply, ScriptedGateway, Step, scripted_gateway, use

HARNESS = NativeHarness(
    NativeHarnessConfig(kind="native", max_turns=4, max_tokens=64, memory_mb=1024, cpu_s=60),
    LinearScenarioConfig(kind="linear"),
)

BOOT = "boot: workspace, sandbox, listener"
BOOT_MS = 30
"""Target for a boot on an idle machine, at the median."""
WARM = 2
"""Sandboxes kept warm, where the row says so."""
GROUP = 8
"""Attempts at one task."""
PAUSE_S = 0.25
"""Between two boots from warm slots: less than a model computes between two turns."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds per piece."""

    piece: str
    wall_p50: float
    wall_p95: float
    cpu: float


def cpu_seconds() -> float:
    """Return the CPU time of this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


async def measure(piece: str, count: int, action: Callable[[int], Awaitable[object]]) -> Cost:
    """Measure an action ``count`` times, one after the other, after one warm-up."""
    await action(-1)
    walls = []
    cpu = cpu_seconds()
    for number in range(count):
        begun = time.perf_counter()
        await action(number)
        walls.append((time.perf_counter() - begun) * 1000)
    cpu = (cpu_seconds() - cpu) * 1000 / count
    p95 = statistics.quantiles(walls, n=20)[-1] if count > 1 else walls[0]
    return Cost(piece, round(statistics.median(walls), 1), round(p95, 1), round(cpu, 1))


def read_then_submit(request: dict[str, Any]) -> Step:
    """Answer the first turn with a Read, the second with Submit."""
    if len(request["messages"]) == 1:
        return Reply([use("Read", path="README.md")])
    return Reply([use("Submit", message="done")])


class Bench:
    """The pieces of a rollout, on one backend."""

    def __init__(self, backend: LocalBackend, gateway: ScriptedGateway, tasks: list[Task]) -> None:
        self._backend = backend
        self._gateway = gateway
        self._tasks = tasks

    def spec(self, name: str, task: Task) -> SandboxSpec:
        """Describe an agent's sandbox."""
        return SandboxSpec(
            name,
            task.repo,
            "gateway",
            gateway_control=self._gateway.control,
            gateway_url=self._gateway.url,
            session_key="key",
            mounts=HARNESS.mounts(),
        )

    async def boot(self, number: int) -> float:
        """Make a workspace, a sandbox and its gateway listener; return the milliseconds until a
        command has ended, without those of the removal.
        """
        begun = time.perf_counter()
        sandbox = await self._backend.create(self.spec(f"b{number}", self._tasks[0]))
        await sandbox.run(["true"], deadline_s=60)
        spent = (time.perf_counter() - begun) * 1000
        await sandbox.close()
        return spent

    async def boots(self, piece: str, count: int, at_once: int, pause_s: float) -> Cost:
        """Boot ``count`` sandboxes, ``at_once`` at a time."""
        await self.boot(-1)
        walls: list[float] = []
        cpu = cpu_seconds()
        for first in range(0, count, at_once):
            await asyncio.sleep(pause_s)
            walls += await asyncio.gather(*(self.boot(first + each) for each in range(at_once)))
        cpu = (cpu_seconds() - cpu) * 1000 / len(walls)
        p95 = statistics.quantiles(walls, n=20)[-1]
        return Cost(piece, round(statistics.median(walls), 1), round(p95, 1), round(cpu, 1))

    async def workspace(self, number: int) -> None:
        """Make a workspace and remove it."""
        sandbox = await self._backend.create(self.spec(f"w{number}", self._tasks[0]))
        await sandbox.close()

    async def agent(self, sandbox: Sandbox, task: Task) -> None:
        """Let the agent read a file and submit."""
        context = HarnessContext(task.problem_statement, "key", "policy", 60)
        result = await HARNESS.run(sandbox, context)
        assert result.code is OutcomeCode.POLICY_FINISHED, result

    async def rollout(self, number: int) -> None:
        """Run a rollout without the model: boot, agent, patch, grade."""
        task = self._tasks[number % len(self._tasks)]
        sandbox = await self._backend.create(self.spec(f"r{number}", task))
        try:
            await self.agent(sandbox, task)
            patch = await asyncio.to_thread(diff_workspace, task, sandbox.workspace)
        finally:
            await sandbox.close()
        grader = SandboxGrader(self._backend)
        verdict = await grader.grade(task, patch, name=f"g{number}", deadline_s=60)
        assert verdict.kind is VerdictKind.UNSOLVED, verdict


def make_source(directory: Path, files: int) -> Path:
    """Make a repository of ``files`` files of 10 KB."""
    for number in range(files):
        file = directory / f"d{number % 50}" / f"f{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"line_{(number * 7919 + each) % 99991} = {each}\n" for each in range(500))
        file.write_text("".join(lines))
    return directory


class Nowhere:
    """A machine that takes everything and does nothing: what is left is the driver's own work."""

    async def run_script(self, script: str, *, deadline_s: float) -> bytes:
        return START + b"0\n\n\n"

    async def write_file(self, path: str, content: bytes | Path) -> None:
        return

    async def read_file(self, path: str, target: Path) -> None:
        raise NotImplementedError

    async def terminate(self) -> None:
        return


async def bench_groups(root: Path, files: int) -> list[Cost]:
    """Prepare the files of a group's sandboxes, with one archive for all and with one for each."""
    source = make_source(root / f"source-{files}", files)
    spec = SandboxSpec("one", source, "none", mounts=HARNESS.mounts())
    costs = []
    for piece, share in (("one archive", True), ("an archive each", False)):

        async def start_group(turn: int, share: bool = share) -> None:
            caches = [root / f"{files}-{share}-{turn}-{each}" for each in range(GROUP)]
            caches = caches[:1] if share else caches
            made = [ArchiveCache(each) for each in caches]
            sandboxes = (
                RemoteSandbox(spec, Nowhere(), root, made[each % len(made)])
                for each in range(GROUP)
            )
            await asyncio.gather(*(each.open() for each in sandboxes))

        costs.append(await measure(f"{GROUP} x {files} files packed, {piece}", 3, start_group))
    return costs


async def bench_containers(root: Path, files: int) -> list[Cost]:
    """Start a group's containers at once, alone and from an image of the second one."""
    source = make_source(root / f"podman-{files}", files)
    costs = []
    with podman_engine():
        for piece, share in (("each filled", False), ("prepared once", True)):
            backend = ContainerBackend(podman_settings(), root / f"{files}-{share}-driver")

            async def start_group(
                turn: int, share: bool = share, backend: ContainerBackend = backend
            ) -> None:
                # Each has another path, so they are unlike; a turn's path begins a new group.
                specs = [
                    SandboxSpec(
                        f"{turn}-{each}", source, "none", removed=(f"/{turn}/{share or each}",)
                    )
                    for each in range(GROUP)
                ]
                made = await asyncio.gather(*(backend.create(spec) for spec in specs))
                await asyncio.gather(*(sandbox.close() for sandbox in made))

            costs.append(await measure(f"podman: {GROUP} x {files} files, {piece}", 3, start_group))
            await backend.close()
    return costs


def settings(isolation: str, *, warm: int) -> LocalSandboxConfig:
    """Return a backend's settings."""
    values = {
        **{"kind": "local", "isolation": isolation, "memory_mb": 1024, "processes": 64},
        **{"file_mb": 64, "cpu_s": 60, "warm": warm},
    }
    return LocalSandboxConfig.model_validate(values)


async def bench(isolation: str, count: int, at_once: int) -> list[Cost]:
    """Measure every piece."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        tasks = build(root / "tasks", seed=0, train=4, held_out=4)
        backend = LocalBackend(settings(isolation, warm=0), root / "sandboxes")
        warm = LocalBackend(settings(isolation, warm=WARM), root / "warm")
        async with scripted_gateway(root) as gateway:
            gateway.choose = read_then_submit
            pieces = Bench(backend, gateway, tasks)
            warm_pieces = Bench(warm, gateway, tasks)
            costs = []
            for _ in range(2):  # alternately, so that other load on the machine disturbs both alike
                costs += [
                    await warm_pieces.boots(f"{BOOT}; {WARM} kept warm", count, 1, PAUSE_S),
                    await pieces.boots(f"{BOOT}; none warm", count, 1, PAUSE_S),
                ]
            costs.append(await pieces.boots("64 boots at once, none warm", 64, 64, 0))
            await warm.close()
            costs.append(await measure("workspace made and removed", count, pieces.workspace))
            task = tasks[0]
            plain = await backend.create(SandboxSpec("plain", task.repo, "none"))
            (plain.workspace / "empty.py").write_text("")
            for piece, argv in (
                ("boot and run: true", ["true"]),
                ("boot and run: python script", ["python", "-I", "-S", "empty.py"]),
            ):
                run = _runner(plain, argv)
                costs.append(await measure(piece, count, run))
            sandbox = await backend.create(pieces.spec("agent", task))

            async def agent(_: int) -> None:
                await pieces.agent(sandbox, task)

            async def patch(_: int) -> None:
                await asyncio.to_thread(diff_workspace, task, sandbox.workspace)

            async def grade(number: int) -> None:
                grader = SandboxGrader(backend)  # a new one, without cached verdicts
                empty = await asyncio.to_thread(diff_workspace, task, task.repo)
                await grader.grade(task, empty, name=f"g{number}", deadline_s=60)

            costs.append(await measure("agent: boot, two turns, end", count, agent))
            (sandbox.workspace / "new.py").write_text("x = 1\n")
            costs.append(await measure("patch", count, patch))
            costs.append(await measure("patch and grade", count, grade))
            costs.append(await measure("all of a rollout but the model", count, pieces.rollout))

            async def several(number: int) -> None:
                base = (number + 1) * at_once + 10_000
                await asyncio.gather(*(pieces.rollout(base + each) for each in range(at_once)))

            batch = await measure(f"the same, {at_once} at once, each", max(2, count // 8), several)
            costs.append(
                Cost(
                    batch.piece,
                    round(batch.wall_p50 / at_once, 1),
                    round(batch.wall_p95 / at_once, 1),
                    round(batch.cpu / at_once, 1),
                )
            )
            await backend.close()
        for files in (20, 2000):
            costs += await bench_groups(root, files)
            if find_obstacle() is None:
                costs += await bench_containers(root, files)
    return costs


def _runner(sandbox: Sandbox, argv: list[str]) -> Callable[[int], Awaitable[object]]:
    return lambda _: sandbox.run(argv, deadline_s=60)


def main() -> None:
    """Print a table, and a line of JSON for programs."""
    parser = argparse.ArgumentParser(description="The cost of a rollout outside the model.")
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    costs = asyncio.run(bench(options.isolation, options.count, options.at_once))
    print(f"{'milliseconds':52}{'wall p50':>10}{'wall p95':>10}{'cpu':>8}")
    for cost in costs:
        print(f"{cost.piece:52}{cost.wall_p50:>10}{cost.wall_p95:>10}{cost.cpu:>8}")
    for cost in costs:
        if cost.piece.startswith(BOOT):
            kept = "kept" if cost.wall_p50 <= BOOT_MS else "NOT KEPT"
            print(f"{cost.piece}: p50 of at most {BOOT_MS} ms {kept}")
    print(json.dumps({"isolation": options.isolation, "costs": [asdict(cost) for cost in costs]}))


if __name__ == "__main__":
    main()
