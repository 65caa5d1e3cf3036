"""Runs of one harness: a small repository in a sandbox, a real gateway, an engine with a script."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.testing.host_processes import find_left, list_children
from agentrl.testing.threaded_engine import ThreadedEngine
from conf.schema import Config
from runners.gateway.client import GatewayAdmin
from runners.gateway.service import serve_inline
from runners.gateway.settings import GatewaySettings
from runners.records.store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.rollouts.contract import Harness, HarnessContext, HarnessResult
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import (
    CommandResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)
from runners.sandboxes.wrappers import ForwardingSandbox

ROOM = 1 << 20
"""Context of the model in tokens: no prompt is too long."""
BUSY_S = 120.0
"""Deadline of a run that is not about deadlines."""


class WatchedSandbox(ForwardingSandbox):
    """A sandbox that keeps the command lines that a harness starts."""

    def __init__(self, real: Sandbox) -> None:
        super().__init__(real)
        self.commands: list[list[str]] = []
        self.lost = False
        """No command can be run any more."""

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        """Run a command in it."""
        self.commands.append(list(argv))
        if self.lost:
            raise SandboxError("the machine of the sandbox is gone")
        return await super().run(argv, **options)


@dataclass(slots=True)
class HarnessTrial:
    """One run of the harness, while it lasts and when it has ended."""

    key: str
    """Key of its session."""
    sandbox: WatchedSandbox
    result: HarnessResult | None = None
    """None: it raised, or was cancelled."""
    error: BaseException | None = None
    session: dict[str, Any] = field(default_factory=dict)
    """The gateway's answer at the end of the session: counters, and segments with their tokens."""
    left: list[str] = field(default_factory=list)
    """Commands of processes that were there when all was closed."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Files of the workspace at the end, without git's."""


@dataclass(slots=True)
class HarnessBench:
    """A gateway, an engine and a sandbox backend, on which a harness runs as often as wanted."""

    harness: Harness
    backend: SandboxBackend
    engine: ThreadedEngine
    admin: GatewayAdmin
    gateway: dict[str, Any]
    source: Path
    _numbers: Any = field(default_factory=itertools.count)

    @asynccontextmanager
    async def open_trial(self, max_turns: int | None = None) -> AsyncIterator[HarnessTrial]:
        """Yield a run that can begin; afterwards end its session and sandbox, and look at both."""
        before = list_children()
        session, key = await self.admin.create_session(
            f"trial-{next(self._numbers)}", max_turns=max_turns
        )
        spec = SandboxSpec(
            session,
            self.source,
            "gateway",
            gateway_control=Path(self.gateway["control"]),
            gateway_url=self.gateway["url"],
            session_key=key,
            mounts=self.harness.mounts(),
        )
        sandbox = WatchedSandbox(await self.backend.create(spec))
        trial = HarnessTrial(key, sandbox)
        try:
            yield trial
            with suppress(SandboxError):  # a test may have closed it
                async with sandbox.on_host(leave_out=(".git",)) as workspace:
                    trial.files = await asyncio.to_thread(_read_files, workspace)
        finally:
            await sandbox.close()
            trial.session = await self.admin.finish(session)
            await self.admin.delete(session)
        trial.left = await find_left(before, key)

    async def start(self, trial: HarnessTrial, prompt: str, deadline_s: float = BUSY_S) -> None:
        """Run the harness to its end, and keep its result or what it raised."""
        context = HarnessContext(prompt, trial.key, "policy", deadline_s)
        try:
            trial.result = await self.harness.run(trial.sandbox, context)
        except BaseException as error:
            trial.error = error
            raise


@asynccontextmanager
async def open_bench(config: Config, place: Path) -> AsyncIterator[HarnessBench]:
    """Yield a bench for the harness of a configuration; its files are written below ``place``."""
    source, run_dir = _make_repository(place / "source"), place / "run"
    harness = make_harness(config.harness, config.scenario)
    backend = await asyncio.to_thread(make_backend, config.sandbox, place / "sandboxes")
    RunStore.create(run_dir, {}).close()
    try:
        async with ThreadedEngine() as engine:
            settings = GatewaySettings.from_config(
                config,
                run_dir=run_dir,
                engine_url=engine.url,
                tokenizer=write_tiny_tokenizer(place / "tokenizer"),
            ).model_copy(update={"max_context_tokens": ROOM, "engine_attempts": 1})
            async with serve_inline(settings) as gateway:
                admin = GatewayAdmin(gateway["url"], gateway["admin_key"])
                try:
                    yield HarnessBench(harness, backend, engine, admin, gateway, source)
                finally:
                    await admin.close()
    finally:
        await backend.close()


def _make_repository(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "a.py").write_text("def add(a, b):\n    return a - b\n")
    git = ["git", "-C", str(directory), "-c", "user.name=kit", "-c", "user.email=kit@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    return directory


def _read_files(workspace: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(workspace)): path.read_bytes()
        for path in workspace.rglob("*")
        if path.is_file() and not path.is_symlink() and ".git" not in path.parts
    }
