"""A real agent program at work: a small repository in a real sandbox, a real gateway in this loop,
a scripted engine behind it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.schema import Harness as HarnessConfig
from conf.schema import LinearScenario, Scenario
from runners.harnesses.contract import Harness, HarnessContext, HarnessResult
from runners.harnesses.registry import make_harness
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from tests.fakes.scripted_engine import ScriptedEngine, spoken
from tests.fakes.tiny_tokenizer import write_tiny_tokenizer
from tests.runners.gateway.running import Agent, running_gateway

LINEAR = LinearScenario(kind="linear")
MAIN, SUB = "main", "sub"


def call(name: str, **arguments: Any) -> str:
    """Return a tool call as the policy samples it."""
    return spoken([{"type": "tool_use", "name": name, "input": arguments}])


def say(text: str) -> str:
    """Return an answer without a call."""
    return spoken([{"type": "text", "text": text}])


@dataclass
class Work:
    """What came of one run of the agent."""

    result: HarnessResult
    finished: dict[str, Any]
    a_py: str
    changed: list[str]
    """Names in the workspace that were not there before."""


@asynccontextmanager
async def gateway_session(
    engine: ScriptedEngine, tmp_path: Path, **changes: Any
) -> AsyncIterator[Agent]:
    """Open a session of a gateway in this loop."""
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    async with running_gateway(engine.url, tokenizer, tmp_path / "run", **changes) as gateway:
        yield await gateway.session()


@asynccontextmanager
async def opened(
    backend: SandboxBackend, session: Agent, tmp_path: Path, harness: Harness
) -> AsyncIterator[Sandbox]:
    """Make a sandbox over a small repository."""
    source = tmp_path / "source"
    source.mkdir()
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


async def work(
    program: HarnessConfig,
    backend: SandboxBackend,
    session: Agent,
    tmp_path: Path,
    scenario: Scenario = LINEAR,
    *,
    key: str | None = None,
    deadline_s: float = 60,
) -> Work:
    """Let the agent work on a small repository."""
    harness = make_harness(program, scenario)
    context = HarnessContext("Fix add in a.py.", key or session.key, "policy", deadline_s)
    async with opened(backend, session, tmp_path, harness) as sandbox:
        result = await harness.run(sandbox, context)
        async with sandbox.on_host() as workspace:
            return Work(
                result,
                await session.finish(),
                (workspace / "a.py").read_text(),
                sorted({path.name for path in workspace.iterdir()} - {"a.py", "big.txt"}),
            )


def chains_of(done: Work) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return every segment's kind, thread (``MAIN`` or ``SUB``) and own turns."""
    return [
        (c["kind"], MAIN if c["thread"] == MAIN else SUB, tuple(c["own_turns"]))
        for c in done.finished["segments"]
    ]


def check_tokens(done: Work, engine: ScriptedEngine) -> None:
    """Every sampled token is trained, once, after exactly the prompt that it was sampled after."""
    stats = done.finished["stats"]
    assert stats["trained_tokens"] == stats["sampled_tokens"]
    assert stats["sampled_tokens"] == sum(len(ids) for ids, _ in engine.seen.answered)
    assert (stats["forks"], stats["ambiguous"]) == (0, 0)
    for chain in done.finished["segments"]:
        last = chain["turns"][-1]
        saw = engine.seen.requests[last]["input_ids"] + engine.seen.answered[last][0]
        assert chain["tokens"] == saw
