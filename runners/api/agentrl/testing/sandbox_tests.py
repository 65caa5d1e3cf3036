"""Common ground of the sandbox suites: a backend for the class, its sandboxes, small sources."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.testing.loop_tests import LoopTests
from agentrl.testing.plugin_target import PluginTests
from conf.sections.sandbox import CustomSandboxConfig
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxBackend, SandboxSpec

_names = (f"conformance-{number}" for number in itertools.count())


class SandboxTests(PluginTests, LoopTests):
    """Base of the suites: subclasses name a plug-in's machines, or open another backend, and say
    what it promises.
    """

    isolated: ClassVar[bool] = True
    """Commands have no network and no root rights, and can write only their own files."""
    remote: ClassVar[bool] = False
    """Its sandboxes outlive their driver."""
    boots_at_once: ClassVar[int] = 16
    """Sandboxes that are booted at the same time."""
    backend: ClassVar[SandboxBackend]

    @asynccontextmanager
    async def open_backend(self, root: Path) -> AsyncIterator[SandboxBackend]:
        """Yield the backend for all tests of the class; its files are in ``root``."""
        plugin = self.configure("sandboxes").model_dump()
        config = CustomSandboxConfig.model_validate(
            {"kind": "custom", "has_images": False, **plugin}
        )
        backend = await asyncio.to_thread(make_backend, config, root)
        yield backend
        await backend.close()

    def list_machines(self) -> Collection[str]:
        """Return what the provider still runs for closed sandboxes, where that can be asked."""
        return ()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _open_backend(
        cls, _event_loop: None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[None]:
        with cls.opened(cls().open_backend(tmp_path_factory.mktemp("backend"))) as cls.backend:
            yield

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """Return a directory with two files."""
        source = tmp_path / "source"
        source.mkdir()
        (source / "a.txt").write_text("one\n")
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        return source

    @pytest.fixture
    def layout(self, tmp_path: Path) -> dict[str, Any]:
        """Return a workdir of its own and two trees, as fields of a spec."""
        for name in ("logs/agent", "data"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "data" / "x.txt").write_text("x\n")
        trees = {"/logs": tmp_path / "logs", "/data": tmp_path / "data"}
        return {"workdir": "/app/here", "trees": trees}

    @asynccontextmanager
    async def open_sandbox(self, source: Path, **more: Any) -> AsyncIterator[Sandbox]:
        """Yield a sandbox without network over ``source``; ``more``: fields of its spec."""
        sandbox = await self.backend.create(SandboxSpec(next(_names), source, "none", **more))
        try:
            yield sandbox
        finally:
            await sandbox.close()

    def skip_without_paths(self) -> None:
        """Skip a test of paths inside where nothing isolates: there are none."""
        if not self.isolated:
            pytest.skip("without isolation there are no paths inside")


async def sh(sandbox: Sandbox, script: str, *, deadline_s: float = 30) -> CommandResult:
    """Run a shell script in a sandbox."""
    return await sandbox.run(["bash", "-c", script], deadline_s=deadline_s)
