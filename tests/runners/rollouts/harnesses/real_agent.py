"""Runs of a real agent program: a small repository in a real sandbox, a real gateway in this event
loop, and a scripted engine.
"""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agentrl.testing.completions import Completion, Reply, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.programs import program_path
from conf.schema import Config
from conf.sections.harness import (
    HarnessConfig,
    MiniSweAgentHarnessConfig,
    NativeHarnessConfig,
    UserHarnessConfig,
)
from conf.sections.scenario import LinearScenarioConfig, ScenarioConfig
from runners.records.tokenizer import write_tiny_tokenizer
from runners.rollouts.contract import Harness, HarnessContext, HarnessResult
from runners.rollouts.harnesses.registry import install_harness, make_harness
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from tests.fakes.running_gateway import Agent, running_gateway

LINEAR = LinearScenarioConfig(kind="linear")
MAIN, SUB = "main", "sub"
PROBLEM = "Fix add in a.py."
"""The task of every run."""


def install_or_skip(harness: HarnessConfig) -> None:
    """Install a real program; skip the test where npm, which installs it, is missing."""
    assert not isinstance(harness, NativeHarnessConfig | UserHarnessConfig)
    by_npm = not isinstance(harness, MiniSweAgentHarnessConfig)
    if by_npm and shutil.which("npm") is None and not program_path(harness).exists():
        pytest.skip(f"npm, which installs {harness.kind}, is missing")
    install_harness(harness)


def call(name: str, **arguments: Any) -> str:
    """Return a tool call as the policy samples it."""
    return spoken([{"type": "tool_use", "name": name, "input": arguments}])


def say(text: str) -> str:
    """Return an answer without a call."""
    return spoken([{"type": "text", "text": text}])


class SeveralThreads(ScriptedEngine):
    """A scripted engine with one script per thread, because the order of their requests varies.

    A sub-agent's script is found by its task. ``AGENT`` in a script becomes the name of the
    sub-agent that the prompt named last, as Codex names it.
    """

    def __init__(self, scripts: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self._scripts = {task: deque(map(Completion, texts)) for task, texts in scripts.items()}

    async def _generate(self, body: dict[str, Any]) -> Reply:
        prompt = self.tokenizer.decode(body["input_ids"], skip_special_tokens=False)
        user_text = "".join(
            part.partition("<|im_end|>")[0] for part in prompt.split("<|im_start|>user")
        )
        task = next((task for task in self._scripts if task != MAIN and task in user_text), MAIN)
        self.script = self._scripts[task]
        if self.script and (named := re.findall(r'"agent_id":"([^"]+)"', prompt)):
            text = self.script[0].text.replace("AGENT", named[-1])
            self.script[0] = replace(self.script[0], text=text)
        return await super()._generate(body)


@dataclass
class AgentRun:
    """Result of one run of the agent."""

    result: HarnessResult
    finished: dict[str, Any]
    key: str
    """Key of its session."""
    a_py: str
    changed: list[str]
    """Names in the workspace that were not there before."""


@asynccontextmanager
async def gateway_session(
    engine: ScriptedEngine, place: Path, max_turns: int | None = None, room: int = 400_000
) -> AsyncIterator[Agent]:
    """Open a session of a gateway in this loop."""
    tokenizer, run = write_tiny_tokenizer(place / "tokenizer"), place / "run"
    async with running_gateway(engine.url, tokenizer, run, max_context_tokens=room) as gateway:
        yield await gateway.session(max_turns=max_turns)


@asynccontextmanager
async def open_sandbox(
    backend: SandboxBackend,
    session: Agent,
    tmp_path: Path,
    harness: Harness,
    files: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Sandbox]:
    """Make a sandbox over a small repository, with further ``files``."""
    source = tmp_path / "source"
    source.mkdir()
    for name, text in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    (source / "a.py").write_text("def add(a, b):\n    return a - b\n")
    (source / "big.txt").write_text("lorem ipsum\n" * 250)
    spec = SandboxSpec(
        "agent",
        source,
        "gateway",
        gateway_control=Path(session.gateway.control),
        gateway_url=session.gateway.url,
        session_key=session.key,
        mounts=harness.mounts(),
    )
    sandbox = await backend.create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@dataclass(frozen=True)
class RealProgram:
    """An installed real agent program, with a sandbox backend and an engine."""

    config: Config
    backend: SandboxBackend
    engine: ScriptedEngine
    place: Path
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files of the repository."""

    async def work(
        self,
        scenario: ScenarioConfig = LINEAR,
        *,
        max_turns: int | None = None,
        room: int = 400_000,
        key: str | None = None,
        deadline_s: float = 60,
    ) -> AgentRun:
        """Let it work on a small repository; ``room``: the model's context in tokens."""
        harness = make_harness(self.config.harness, scenario)
        async with (
            gateway_session(self.engine, self.place, max_turns, room) as session,
            open_sandbox(self.backend, session, self.place, harness, self.files) as sandbox,
        ):
            context = HarnessContext(PROBLEM, key or session.key, "policy", deadline_s)
            result = await harness.run(sandbox, context)
            async with sandbox.on_host() as workspace:
                return AgentRun(
                    result,
                    await session.finish(),
                    session.key,
                    (workspace / "a.py").read_text(),
                    sorted({path.name for path in workspace.iterdir()} - {"a.py", "big.txt"}),
                )


def chains_of(done: AgentRun) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return every segment's kind, thread (``MAIN`` or ``SUB``) and own turns."""
    return [
        (c["kind"], MAIN if c["thread"] == MAIN else SUB, tuple(c["own_turns"]))
        for c in done.finished["segments"]
    ]


def check_tokens(done: AgentRun, engine: ScriptedEngine) -> None:
    """Check that every sampled token is trained once, after exactly its own prompt."""
    stats = done.finished["stats"]
    assert stats["trained_tokens"] == stats["sampled_tokens"]
    assert stats["sampled_tokens"] == sum(len(ids) for ids, _ in engine.seen.answered)
    assert (stats["forks"], stats["ambiguous"]) == (0, 0)
    for chain in done.finished["segments"]:
        last = chain["turns"][-1]
        seen = engine.seen.requests[last]["input_ids"] + engine.seen.answered[last][0]
        assert chain["tokens"] == seen
