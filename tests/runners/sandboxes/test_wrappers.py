"""A sandbox whose calls come from the loop of plug-ins; agents and graders that block there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.guarded import GuardedHarness
from runners.sandboxes.contract import CommandResult, SandboxError, SandboxSpec
from runners.sandboxes.wrappers import SandboxElsewhere
from runners.system.plugins.calls import run_beside


class Here:
    """A sandbox that says in which loop it was called; ``sleep`` is a command that lasts."""

    def __init__(self) -> None:
        self.spec = SandboxSpec("one", None, "none")
        self.workdir = "/workspace"
        self.gateway_url = None
        self.calls: list[str] = []
        self.loop = asyncio.get_running_loop()

    async def run(self, argv: list[str], *, deadline_s: float = 1, **more: Any) -> CommandResult:
        assert asyncio.get_running_loop() is self.loop
        try:
            await asyncio.sleep(60 if argv == ["sleep"] else 0)
        finally:
            self.calls.append(f"ended {argv[0]}")
        return CommandResult(0, " ".join(argv).encode(), b"", 0.0)

    @asynccontextmanager
    async def on_host(self, **options: Any) -> AsyncIterator[Path]:
        async with asyncio.timeout(30):  # which has to be left by the task that entered it
            if options["only"]:
                raise SandboxError("too large")
            yield Path("workspace")
        self.calls.append("left")

    async def close(self) -> None:
        self.calls.append("closed")


class Agent:
    """A harness that is one function."""

    def __init__(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        self._work = work

    def mounts(self) -> dict[str, Path]:
        return {}

    async def run(self, sandbox: Any, context: HarnessContext) -> Any:
        return await self._work(sandbox)


async def run_agent(here: Any, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> HarnessResult:
    harness = GuardedHarness("agent.py:Agent", Agent(work))
    return await harness.run(here, HarnessContext("Do it.", "key", "policy", 60))


async def test_its_calls_are_carried_to_the_loop_that_owns_it() -> None:
    here: Any = Here()

    async def work(sandbox: Any) -> HarnessResult:
        assert asyncio.get_running_loop() is not here.loop
        assert (sandbox.workdir, sandbox.gateway_url) == ("/workspace", None)
        done = await sandbox.run(["echo"], deadline_s=5)
        async with sandbox.on_host() as place:
            assert place == Path("workspace")
        with pytest.raises(SandboxError, match="too large"):
            async with sandbox.on_host(only=("a",)):
                pass
        return HarnessResult.of_command(done)

    result = await run_agent(here, work)
    assert (result.code, result.output) == (OutcomeCode.POLICY_FINISHED, "echo")
    assert here.calls == ["ended echo", "left"]


async def test_a_cancelled_agents_command_has_ended_when_the_agent_has() -> None:
    here: Any = Here()

    async def work(sandbox: Any) -> HarnessResult:
        return HarnessResult.of_command(await sandbox.run(["sleep"], deadline_s=60))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await run_agent(here, work)
    assert here.calls == ["ended sleep"]


async def test_an_agent_that_blocks_does_not_stop_the_campaigns_loop() -> None:
    here: Any = Here()
    blocked, released = threading.Event(), threading.Event()

    async def work(sandbox: Any) -> HarnessResult:
        blocked.set()
        released.wait(60)
        return HarnessResult.of_command(await sandbox.run(["echo"], deadline_s=5))

    agent = asyncio.ensure_future(run_agent(here, work))
    await asyncio.to_thread(blocked.wait, 30)
    await asyncio.sleep(0)  # this loop goes on
    assert not agent.done()
    released.set()
    assert (await agent).code is OutcomeCode.POLICY_FINISHED


async def test_what_is_raised_in_a_sandboxs_block_leaves_it() -> None:
    here: Any = Here()
    elsewhere = SandboxElsewhere(here)

    async def work() -> None:
        async with elsewhere.on_host():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await run_beside(work)
    assert here.calls == ["left"]
