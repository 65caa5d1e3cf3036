"""A group's containers start from an image of one that was set up, and from nothing else's."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.containers import ContainerBackend
from runners.sandboxes.remote.prepared_images import PreparedImages, find_volume
from tests.fakes.docker.installed import can_stand_in, docker_program
from tests.fakes.podman import IMAGE, find_obstacle, podman, podman_engine
from tests.fakes.sandbox_backends import docker_settings, podman_settings


class Engine:
    """Containers that are started and committed in memory."""

    def __init__(self) -> None:
        self.images: list[str] = []
        self.calls: list[str] = []
        self.refuses_commits = False
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def remove(self, image: str) -> None:
        self.images.remove(image)


class Container:
    """One container of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.image: str | None = None

    async def start(self, image: str | None) -> None:
        await self._engine.may_start.wait()
        if image is not None and image not in self._engine.images:
            raise SandboxError(f"no such image: {image}")
        self.image = image
        self._engine.calls.append("filled" if image is None else "started")

    async def commit(self, image: str) -> None:
        if self._engine.refuses_commits:
            raise SandboxError("no space left")
        self._engine.images.append(image)
        self._engine.calls.append("committed")

    async def terminate(self) -> None:
        self._engine.calls.append("terminated")


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def images(engine: Engine) -> PreparedImages:
    return PreparedImages("0123456789abcdef", engine.remove, most_unused=1)


async def test_a_sandbox_without_an_equal_is_not_committed(
    engine: Engine, images: PreparedImages
) -> None:
    for setup in ("one", "two", "three"):
        await images.start(setup, Container(engine))
    assert engine.calls == ["filled"] * 3


async def test_the_second_of_a_group_is_committed_for_all_that_follow(
    engine: Engine, images: PreparedImages
) -> None:
    engine.may_start.clear()
    group = [asyncio.ensure_future(images.start("one", Container(engine))) for _ in range(6)]
    await asyncio.sleep(0)
    engine.may_start.set()
    await asyncio.gather(*group)
    assert engine.calls == ["filled", "filled", "committed", *["started"] * 4]
    assert engine.images == ["localhost/agentrl-prepared:0123456789ab-0"]


async def test_where_nothing_can_be_committed_all_are_filled(
    engine: Engine, images: PreparedImages, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refuses_commits = True
    with caplog.at_level(logging.WARNING):
        for setup in ("one", "two") * 4:
            await images.start(setup, Container(engine))
    assert engine.calls == ["filled"] * 8
    assert caplog.text.count("no space left") == 1


async def test_an_image_that_is_gone_is_done_without(
    engine: Engine, images: PreparedImages
) -> None:
    for _ in range(2):
        await images.start("one", Container(engine))
    engine.images.clear()  # as by `docker image prune`
    for _ in range(2):
        await images.start("one", Container(engine))
    assert engine.calls == ["filled", "filled", "committed", "terminated", "filled", "filled"]


async def test_a_cancelled_or_failed_sandbox_leaves_its_part_to_the_next(
    engine: Engine, images: PreparedImages
) -> None:
    await images.start("one", Container(engine))
    engine.may_start.clear()
    second, third = (
        asyncio.ensure_future(images.start("one", Container(engine))) for _ in range(2)
    )
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    engine.may_start.set()
    release = await third
    assert engine.calls == ["filled", "filled", "committed"]
    release()
    # Neither is counted as a user any more, so the image goes when others are newer.
    for setup in ("two", "three"):
        for _ in range(3):
            (await images.start(setup, Container(engine)))()
    assert [image.rpartition("-")[2] for image in engine.images] == ["1", "2"]


async def test_old_images_go_but_none_that_is_used(engine: Engine, images: PreparedImages) -> None:
    used = [await images.start("used", Container(engine)) for _ in range(3)]
    for setup in ("a", "b", "a", "c", "c"):
        for _ in range(3):
            (await images.start(setup, Container(engine)))()
    assert [image.rpartition("-")[2] for image in engine.images] == ["0", "1", "3"]
    for release in used:
        release()
    (await images.start("c", Container(engine)))()
    assert [image.rpartition("-")[2] for image in engine.images] == ["1", "3"]


@pytest.mark.parametrize(
    ("points", "volume"),
    [
        (["/", "/proc", "/dev", "/etc/hosts", "/usr"], None),
        (["/", "/testbed"], "/testbed"),
        (["/", "/testbed/build/cache"], "/testbed/build/cache"),
        (["/", "/home"], "/home"),
        (["/", "/test"], None),
    ],
)
def test_what_lies_on_a_volume_cannot_be_committed(points: list[str], volume: str | None) -> None:
    assert find_volume(["/testbed", "/home/agent"], points) == volume


STATE = """\
id -un; pwd; cat a.txt "$1" /opt/tool; stat -c '%u %a' a.txt old.txt . ~; git log | wc -l
echo mine > a.txt; echo mine > ~/b.txt; ls -A ~; rm -rf old.txt
"""


@pytest.mark.integration
@pytest.mark.parametrize("program", ["podman", pytest.param("docker", marks=pytest.mark.slow)])
async def test_all_of_a_group_find_the_same_and_nothing_of_each_other(
    program: str, tmp_path: Path
) -> None:
    """Docker is a stand-in, podman the real engine."""
    source, tool = tmp_path / "source", tmp_path / "tool"
    (source / "deep").mkdir(parents=True)
    (source / "a.txt").write_text("pinned\n")
    tool.write_text("tool\n")
    script = "mkdir /testbed && echo built > /testbed/old.txt"
    if program == "podman":
        if (obstacle := find_obstacle()) is not None:
            pytest.skip(obstacle)
        engine: AbstractContextManager[None] = podman_engine()
    else:
        if not can_stand_in():
            pytest.skip("this machine cannot stand in for a docker engine")
        engine = docker_program(tmp_path / "bin", image=script)
    with engine:
        image = "swe:1"
        settings = docker_settings() if program == "docker" else podman_settings()
        if program == "podman":
            podman("run", "--name", "made", "--init", IMAGE, "sh", "-c", script)
            podman("commit", "--quiet", "made", image := "localhost/swe:1")
            podman("rm", "made")
        backend = ContainerBackend(settings, tmp_path / "driver")

        async def find(name: str) -> bytes:
            spec = SandboxSpec(
                name, source, "none", image=image, workdir="/testbed", mounts={"/opt/tool": tool},
                trees={"/data": source}, removed=("/etc/nothing",),
            )  # fmt: skip
            sandbox = await backend.create(spec)
            argv = ["sh", "-c", STATE, "sh", "/data/a.txt"]
            done = await sandbox.run(argv, deadline_s=60)
            await sandbox.close()
            return done.stdout

        found = [await find("n0"), *await asyncio.gather(*(find(f"n{at}") for at in (1, 2, 3)))]
        (source / "a.txt").write_text("changed\n")
        later = await find("n4")
        await backend.close()
    assert len(set(found)) == 1, found
    lines = found[0].decode().splitlines()
    assert lines[:5] == ["agent", "/testbed", "pinned", "pinned", "tool"], lines
    assert [line.split()[0] for line in lines[5:9]] == ["61000"] * 4
    assert lines[-1] == "b.txt"
    assert later.decode().splitlines()[2] == "changed"


@pytest.mark.integration
async def test_an_image_with_a_volume_is_filled_each_time_and_nothing_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(obstacle)
    (source := tmp_path / "source").mkdir()
    (source / "a.txt").write_text("one\n")
    with podman_engine():
        podman("run", "--name", "made", "--init", IMAGE, "true")
        podman("commit", "--quiet", "--change=VOLUME /workspace", "made", "localhost/volume:1")
        podman("rm", "made")
        backend = ContainerBackend(podman_settings(), tmp_path / "driver")
        for at in range(3):
            spec = SandboxSpec(f"v{at}", source, "none", image="localhost/volume:1")
            sandbox = await backend.create(spec)
            assert (await sandbox.run(["cat", "a.txt"], deadline_s=60)).stdout == b"one\n"
        for at in range(3):
            await backend.create(SandboxSpec(f"p{at}", source, "none"))
        assert "has a volume at /workspace" in caplog.text
        assert podman("images", "--quiet", "localhost/agentrl-prepared").split()
        # As if this driver was killed: the next one of the run removes what it left.
        following = ContainerBackend(podman_settings(), tmp_path / "driver")
        await following.close()
        assert not podman("images", "--quiet", "localhost/agentrl-prepared").split()
    assert [path.name for path in (tmp_path / "driver").iterdir()] == ["mark"]
