"""What the code under test can see is the same in the run of the real tests and in a canary."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.wrappers import ForwardingSandbox
from runners.tasks.contract import Patch, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.patch import decode_patch
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.cheats.project import TESTS, edit, make_tasks

pytestmark = pytest.mark.integration

PROBE = r"""
import glob, json, os, socket, sys

def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        return type(error).__name__

def _frames():
    frame, found = sys._getframe(1), []
    while frame is not None:
        if "tests" in frame.f_locals:
            found.append(str(frame.f_locals["tests"]))
        frame = frame.f_back
    return found

def _look():
    patched = os.stat("shop/price.py").st_mtime_ns
    seen = {
        "host": socket.gethostname(), "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path,
        "user": [os.getuid(), os.getgid(), os.getgroups()],
        "environment": sorted(os.environ.items()),
        "frames": _frames(), "descriptors": sorted(os.listdir("/proc/self/fd")),
    }
    for path in ("mountinfo", "cgroup", "cmdline", "status", "limits", "oom_score_adj"):
        lines = _read("/proc/self/" + path).splitlines()
        seen[path] = [line for line in lines if "ctxt" not in line and not line.startswith("Vm")
                      and not line.startswith("Rss")]
    seen["processes"] = sorted(_read(each) for each in glob.glob("/proc/[0-9]*/cmdline"))
    seen["files"] = files = []
    for root in (".", "/tmp", "/dev/shm", "/opt/agentrl"):
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in ("__pycache__", ".git"))
            for name in sorted(names):
                path = os.path.join(folder, name)
                info = os.lstat(path)
                late = root == "." and info.st_mtime_ns >= patched
                files.append([path, info.st_mode, info.st_uid, info.st_nlink, late])
    return seen

if not os.path.exists("probe.json"):
    _seen = _look()
    with open("probe.json", "w") as _file:
        json.dump(_seen, _file)
"""
CHANCE = re.compile(r"tmp[a-z0-9_]{8}|[0-9a-f]{16,}|\d+")
"""What is drawn anew for every sandbox: names of temporary folders and of sandboxes, numbers."""


@dataclass
class Reader(ForwardingSandbox):
    """A sandbox of which the probe is read before it is closed."""

    real: Any
    seen: list[dict[str, Any]]

    def __post_init__(self) -> None:
        super().__init__(self.real)

    async def close(self) -> None:
        file = self.real.workspace / "probe.json"
        if file.exists():
            self.seen.append(json.loads(file.read_text()))
        await self.real.close()


@dataclass
class ReadingBackend:
    """Makes sandboxes of which the probe is read."""

    real: LocalBackend
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return cast(Sandbox, Reader(await self.real.create(spec), self.seen))


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBackend]:
    settings = LocalSandboxConfig(
        kind="local", isolation="auto", memory_mb=1024, processes=64, file_mb=8, cpu_s=60, warm=0
    )
    backend = LocalBackend(settings, tmp_path_factory.mktemp("backend"))
    yield backend
    asyncio.run(backend.close())


def make_probe() -> Patch:
    """Return a right solution that looks around."""
    right = "return sum(prices) * (100 - discount) // 100"
    return decode_patch(
        edit(Path(), lambda text: text.replace("return sum(prices) - discount", right) + PROBE), {}
    )


@pytest.mark.parametrize("kind", ["unittest", "pytest", "swebench_pro", "eval_cmd"])
async def test_nothing_tells_a_canary_from_the_real_tests(
    roomy: LocalBackend, tmp_path: Path, kind: str
) -> None:
    task = make_tasks(tmp_path)[kind]
    backend = ReadingBackend(roomy)
    run_tests = SandboxGrader(cast(SandboxBackend, backend))
    verification = Verification(run_tests, 1)
    grader = TaskGrader(run_tests, use_repository_as_is, verification=verification)
    verdict = await grader.grade(
        task, RolloutResult.of_patch(make_probe()), name="r0-grade", deadline_s=120
    )
    assert (verdict.kind, verdict.unverified) == (VerdictKind.SOLVED, ""), verdict
    real, *canaries = [normalize(each) for each in backend.seen]
    assert len(canaries) == (2 if kind == "eval_cmd" else 1)
    for canary in canaries:
        for name, seen in real.items():
            assert canary[name] == seen, name
    tests = [each for each in backend.seen[0]["files"] if each[0].endswith(TESTS)]
    assert tests, "it looks at the tests, too"


def normalize(seen: Any) -> Any:
    """Return what was seen without what is drawn anew for every sandbox."""
    if isinstance(seen, str):
        return CHANCE.sub("0", seen)
    if isinstance(seen, list):
        return [normalize(each) for each in seen]
    if isinstance(seen, dict):
        return {name: normalize(each) for name, each in seen.items()}
    return seen
