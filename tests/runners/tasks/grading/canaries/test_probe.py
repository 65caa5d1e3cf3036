"""What the code under test can see is the same in the run of the real tests and in a canary."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.wrappers import ForwardingSandbox
from runners.tasks.contract import Patch, ScriptGrading, Task, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.cheats.project import TESTS, edit, make_patch, make_tasks

pytestmark = pytest.mark.integration

PROBE = Path(__file__).with_name("probe.py").read_text()
CHANCE = re.compile(
    r"tmp[a-z0-9_]{8}|tmp\.\w{10}|grading-[0-9a-f]{16}|(?<=:\[)\d+|agentrl-[\w.-]+(?:/\d+)?"
)
"""What is drawn anew for every sandbox: names of temporary folders and of sandboxes, numbers of
pipes and sockets, tags.
"""
COPY = re.compile(r"_\d+\b")
"""End of the name of a test's copy in a line-up."""
OF_THE_HOST = ("processes", "identity", "shared", "/tmp", "/dev/shm", "/run", "/etc", "/var/tmp")
"""What changes on its own where the sandbox has no namespaces."""
ISOLATIONS: tuple[Literal["bubblewrap", "unshare", "none"], ...] = ("bubblewrap", "unshare", "none")
COMMAND = "cd /repo && python -m unittest tests.test_price"


@dataclass
class Reader(ForwardingSandbox):
    """A sandbox of which the probe is read before it is closed; ``prefix``: shell commands that
    come before its command.
    """

    real: Any
    seen: list[dict[str, Any]]
    prefix: str

    def __post_init__(self) -> None:
        super().__init__(self.real)

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        if self.prefix:
            argv = ["/bin/sh", "-c", f'{self.prefix}\nexec "$@"', "sh", *argv]
        return await super().run(argv, **options)

    async def close(self) -> None:
        file = self.real.workspace / "probe.json"
        if file.exists():
            self.seen.append(normalize(json.loads(file.read_text())))
        await self.real.close()


@dataclass
class ReadingBackend:
    """Makes sandboxes of which the probe is read, with a leak or without."""

    real: LocalBackend
    seen: list[dict[str, Any]] = field(default_factory=list)
    change: Callable[[SandboxSpec], SandboxSpec] = lambda spec: spec
    prefix: str = ""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self.real.create(self.change(spec))
        return cast(Sandbox, Reader(sandbox, self.seen, self.prefix))


def normalize(seen: Any) -> Any:
    """Return what was seen without what is drawn anew for every sandbox."""
    if isinstance(seen, str):
        return CHANCE.sub("…", seen)
    if isinstance(seen, list):
        return [normalize(part) for part in seen]
    if isinstance(seen, dict):
        return {name: normalize(part) for name, part in seen.items()}
    return seen


def find_differences(one: dict[str, Any], other: dict[str, Any], *, inside: bool) -> list[str]:
    """Return the names of what two runs saw differently; ``inside``: they had namespaces."""
    one, other = ({**seen, **seen["files"], "files": None} for seen in (one, other))
    if not inside:
        one, other = ({**seen, **dict.fromkeys(OF_THE_HOST)} for seen in (one, other))
    # A line-up has more tests in the same order, which is the text of the tests.
    one, other = ({**seen, "tests": _without_copies(seen["tests"])} for seen in (one, other))
    return [
        f"{name}: {_first_difference(one[name], other[name])}"
        for name in one
        if one[name] != other[name]
    ]


def _first_difference(one: Any, other: Any) -> str:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(_first_difference(a, b) for a, b in zip(one, other, strict=True) if a != b)
    if isinstance(one, list) and isinstance(other, list):
        only = [part for part in (*one, *other) if (part in one) != (part in other)]
        return f"{len(one)} and {len(other)}: {str(only)[:600]}"
    return f"{str(one)[:300]} != {str(other)[:300]}"


def _without_copies(found: list[list[str]]) -> list[list[str]]:
    return [list(dict.fromkeys(COPY.sub("", name) for name in tests)) for tests in found]


def make_backend(root: Path, isolation: Literal["bubblewrap", "unshare", "none"]) -> LocalBackend:
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    settings = LocalSandboxConfig(
        kind="local", isolation=isolation, memory_mb=1024, processes=64, file_mb=8, cpu_s=60, warm=0
    )
    return LocalBackend(settings, root)


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, LocalBackend]]:
    backend = make_backend(tmp_path_factory.mktemp("backend"), request.param)
    yield request.param, backend
    asyncio.run(backend.close())


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    found = make_tasks(tmp_path_factory.mktemp("tasks"))
    command = ScriptGrading("eval_cmd", COMMAND, "/repo")
    return {**found, "unittest command": replace(found["eval_cmd"], grading=command)}


def make_probe() -> Patch:
    """Return a right solution that looks around."""
    right = "return sum(prices) * (100 - discount) // 100"
    change = edit(Path(), lambda text: text.replace("return sum(prices) - discount", right) + PROBE)
    return make_patch(change)


KINDS = {
    "unittest": 1,
    "pytest": 1,
    "swebench": 1,
    "swebench_pro": 1,
    "eval_cmd": 1,
    "unittest command": 2,
    "f2p_script": 2,
}
"""Number of canaries after the real tests, by kind of grading."""


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_tells_a_canary_from_the_real_tests(
    isolated: tuple[str, LocalBackend], tasks: dict[str, Task], kind: str
) -> None:
    isolation, local = isolated
    if kind == "swebench" and importlib.util.find_spec("swebench") is None:
        pytest.skip("the extra swebench is not installed")
    if isolation != "bubblewrap" and kind not in ("unittest", "unittest command"):
        pytest.skip("the judges' mounts are looked at with bubblewrap")
    backend = ReadingBackend(local)
    run_tests = SandboxGrader(cast(SandboxBackend, backend))
    grader = TaskGrader(
        run_tests, use_repository_as_is, verification=Verification(run_tests, level=1)
    )
    verdict = await grader.grade(
        tasks[kind], RolloutResult.of_patch(make_probe()), name="r0-grade", deadline_s=120
    )
    assert (verdict.kind, verdict.unverified) == (VerdictKind.SOLVED, ""), verdict
    real, *canaries = backend.seen
    assert len(canaries) == KINDS[kind]
    for canary in canaries:
        differences = find_differences(real, canary, inside=isolation != "none")
        assert differences == []
    assert any(str(file[0]).endswith(TESTS) for file in real["files"]["."]), "it sees the tests"


def change_file(action: Callable[[Path], object]) -> Callable[[SandboxSpec], SandboxSpec]:
    def change(spec: SandboxSpec) -> SandboxSpec:
        def apply(workspace: Path) -> None:
            assert spec.change is not None
            spec.change(workspace)
            action(workspace)

        return replace(spec, change=apply)

    return change


def rewrite(file: Path) -> None:
    """Make a file anew with the same contents and times."""
    info, text = file.stat(), file.read_bytes()
    file.unlink()
    file.write_bytes(text)
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))


SPECS: dict[str, Callable[[SandboxSpec], SandboxSpec]] = {
    "nothing": lambda spec: spec,
    "the name of the sandbox": lambda spec: replace(spec, name="canary-1"),
    "a mount": lambda spec: replace(spec, mounts={**spec.mounts, "/opt/x": Path(__file__)}),
    "a variable": lambda spec: replace(spec, env={"RUN": "2"}),
    "the time of a file": change_file(lambda work: os.utime(work / "README.md", (1, 1))),
    "the mode of a file": change_file(lambda work: (work / "README.md").chmod(0o600)),
    "a further file": change_file(lambda work: (work / ".run").write_text("2")),
    "the order of inodes": change_file(lambda work: rewrite(work / "README.md")),
    "a link": change_file(lambda work: (work / "tests/x").hardlink_to(work / "README.md")),
}
PREFIXES = {
    "no command": ":",
    "a file in /tmp": "touch /tmp/left",
    "a file in /dev/shm": "touch /dev/shm/left",
    "a hash seed": "export PYTHONHASHSEED=1",
    "a umask": "umask 027",
    "a nice value": 'exec nice -n 1 "$@"',
    "a limit": "ulimit -n 500",
    "a descriptor": "exec 7</dev/null",
    "an ignored signal": "trap '' USR1",
    "another process": "sleep 60 &",
    "a process that ended": "/bin/true",
}


async def see(local: LocalBackend, task: Task, **leak: Any) -> dict[str, Any]:
    backend = ReadingBackend(local, **leak)
    run_tests = SandboxGrader(cast(SandboxBackend, backend))
    verdict = await run_tests.grade(task, make_probe(), name="g", deadline_s=120)
    assert verdict.kind is VerdictKind.SOLVED, verdict
    (seen,) = backend.seen
    return seen


async def test_the_probe_sees_every_difference_that_is_made(
    tmp_path: Path, tasks: dict[str, Task]
) -> None:
    local = make_backend(tmp_path, "bubblewrap")
    try:
        task = tasks["unittest"]
        plain, started = await see(local, task), await see(local, task, prefix=":")
        leaks: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            **{name: (plain, {"change": change}) for name, change in SPECS.items()},
            **{name: (started, {"prefix": prefix}) for name, prefix in PREFIXES.items()},
        }
        seen = {
            name: find_differences(base, await see(local, task, **leak), inside=True)
            for name, (base, leak) in leaks.items()
        }
    finally:
        await local.close()
    assert seen.pop("nothing") == seen.pop("no command") == []
    assert [name for name, found in seen.items() if not found] == []
    assert any("scheduling" in difference for difference in seen["a nice value"])
