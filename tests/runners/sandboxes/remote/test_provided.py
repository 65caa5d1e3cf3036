"""Machines that a plug-in starts: the page's example on a real engine, and plug-ins that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.sections.sandbox import CustomSandboxConfig
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.machine import BusyError
from runners.sandboxes.remote.provided import ProvidedBackend
from runners.system.plugins.loading import PluginError
from tests.fakes.podman import OTHER_NAMES, find_obstacle, podman, podman_engine
from tests.fakes.sandbox_backends import documented_machines

MEMORY = '''\
import asyncio
from pathlib import Path


class Memory:
    """Machines that are names in a file; scripts fail as the options say."""

    def __init__(self, *, names: str, fault: str = "") -> None:
        self.file, self.fault = Path(names), fault

    async def start(self, request):
        await asyncio.sleep(0)
        self.file.write_text(f"{self.file.read_text()}{request.name}\\n")
        if self.fault == "start":
            raise ConnectionError("no capacity\\x1b[2J")

    def run_script(self, name, script, deadline_s):
        if self.fault == "exit":
            raise SystemExit(3)
        if self.fault == "find":
            raise ValueError("exit code 1")
        if self.fault == "text":
            return "no bytes"
        raise ValueError("exit code 1")

    def write_file(self, name, path, source):
        return None

    def read_file(self, name, path, target):
        return None

    def find(self, prefix):
        if self.fault == "find" and prefix:
            return [None, 3]
        return self.file.read_text().split()

    def end(self, name):
        left = [each for each in self.find("") if each != name]
        self.file.write_text("".join(f"{each}\\n" for each in left))
'''


def settings(target: str, **options: str) -> CustomSandboxConfig:
    return CustomSandboxConfig.model_validate(
        {"kind": "custom", "target": target, "options": options, "has_images": True}
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("one\n")
    return tmp_path / "source"


@pytest.fixture
def engine() -> Iterator[None]:
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(obstacle)
    with podman_engine():
        yield


@pytest.mark.integration
@pytest.mark.usefixtures("engine")
async def test_the_pages_machines_keep_the_contract(tmp_path: Path, source: Path) -> None:
    config = documented_machines(tmp_path, network="podman")
    backend = make_backend(config, tmp_path / "driver")
    spec = SandboxSpec("one", source, "none")
    sandbox, other = await asyncio.gather(
        backend.create(spec), backend.create(SandboxSpec("two", source, "none"))
    )
    script = "id -un; cat a.txt; cat; echo two > a.txt; sleep 300 & ls /sys/class/net"
    done = await sandbox.run(["sh", "-c", script], deadline_s=60, stdin=b"given\n")
    assert done.stdout == b"agent\none\ngiven\nlo\n", done
    late = await sandbox.run(["sleep", "300"], deadline_s=0.5)
    assert late.timed_out
    left = await sandbox.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], deadline_s=60)
    assert b"sleep 300" not in left.stdout
    async with sandbox.on_host() as workspace:
        assert (workspace / "a.txt").read_text() == "two\n"
    assert (await other.run(["cat", "a.txt"], deadline_s=60)).stdout == b"one\n"
    await sandbox.close()
    # As if the driver was killed: the next one of the run ends what it left, by name or all.
    following = make_backend(config, tmp_path / "driver")
    await following.create(SandboxSpec("three", source, "none"))
    podman("run", "--detach", "--name", "agentrl-of-others", OTHER_NAMES[0], "sleep", "9")
    await following.reap({"two": {}, "gone": {}})
    names = podman("ps", "--all", "--format", "{{.Names}}").split()
    assert sorted(name.rpartition("-")[2] for name in names) == ["others", "three"]
    await following.close()
    assert podman("ps", "--all", "--format", "{{.Names}}").split() == ["agentrl-of-others"]
    podman("rm", "--force", "--time", "0", "agentrl-of-others")


def memory(tmp_path: Path, **options: str) -> ProvidedBackend:
    (tmp_path / "memory.py").write_text(MEMORY)
    (tmp_path / "names").touch()
    options["names"] = str(tmp_path / "names")
    backend = make_backend(settings(f"{tmp_path}/memory.py:Memory", **options), tmp_path / "driver")
    assert isinstance(backend, ProvidedBackend)
    return backend


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("start", r"memory.py:Memory: start raised ConnectionError: no capacity�\[2J \("),
        ("exit", r"run_script raised .*3"),
        ("find", r"find returned \[None, 3\], and has to return names of machines"),
        ("text", r"run_script returned str, and has to return what the script printed, as bytes"),
    ],
)
async def test_a_plug_in_that_fails_is_a_failed_sandbox_and_its_machine_is_ended(
    tmp_path: Path, source: Path, fault: str, message: str
) -> None:
    backend = memory(tmp_path, fault=fault)
    with pytest.raises(SandboxError, match=message):
        await backend.create(SandboxSpec("one", source, "none"))
    assert (tmp_path / "names").read_text() == ""


async def test_a_script_that_fails_on_a_machine_that_is_there_is_worth_another_try(
    tmp_path: Path, source: Path
) -> None:
    with pytest.raises(BusyError, match="exit code 1"):
        await memory(tmp_path).create(SandboxSpec("one", source, "none"))


async def test_only_the_runs_own_machines_are_ended(tmp_path: Path) -> None:
    backend = memory(tmp_path)
    (tmp_path / "names").write_text("database\n")
    await backend.close()
    assert (tmp_path / "names").read_text() == "database\n"


def test_a_plug_in_without_a_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text(MEMORY.replace("def find", "def search"))
    with pytest.raises(PluginError, match=r"it has no method .def find\(self, prefix: str\)"):
        make_backend(settings(f"{tmp_path}/memory.py:Memory", names="n"), tmp_path / "driver")
