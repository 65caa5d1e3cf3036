"""A gateway process with an engine that answers at once, and an agent's turn, for benchmarks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil

from agentrl.testing.completions import Completion, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.client import GatewayAdmin
from runners.gateway.http.control import replica_of
from runners.gateway.settings import GatewaySettings
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.system.processes.service import Service
from tests.fakes.replicated_gateway import replicated_gateway
from tests.fakes.running_gateway import (
    TOOLS,
    assemble_message,
    echo,
    read_events,
    results,
    settings_for,
)

CALL = spoken(
    [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "Bash", "input": {"command": "cat calc.py | head -40"}},
    ]
)
GATEWAY = "runners.gateway"
RERENDERING = "tests.benchmarks.rerendering_gateway"
"""Programs."""
LINES = "def add(a, b):\n    return a - b\n"
OUTPUT = LINES * 4
"""Of a tool."""


@dataclass(frozen=True, slots=True)
class BenchedGateway:
    """A gateway process, its engine and its admin's client."""

    engine: ScriptedEngine
    admin: GatewayAdmin
    processes: Sequence[psutil.Process]

    async def take_turn(
        self,
        http: aiohttp.ClientSession,
        key: str,
        messages: list[dict[str, Any]],
        output: str = OUTPUT,
    ) -> None:
        """Take a turn by streaming, and add answer and tool result to the messages."""
        body = {"model": "policy", "max_tokens": 500, "tools": TOOLS, "messages": messages}
        async with http.post(
            f"{self.admin.urls[replica_of(key) or 0]}/v1/messages",
            data=orjson.dumps({**body, "stream": True}),
            headers={"x-api-key": key},
        ) as response:
            answer = assemble_message(read_events(await response.read()))
        messages += [echo(answer), results(answer, output)]


@asynccontextmanager
async def benched_gateway(
    directory: Path,
    *,
    module: str = GATEWAY,
    more: Mapping[str, Any] | None = None,
    replicas: int = 1,
    **changes: Any,
) -> AsyncIterator[BenchedGateway]:
    """Start a gateway's program and an engine, and end them; see ``started_gateway``."""
    async with ScriptedEngine() as engine:
        engine.always = Completion(CALL)
        if replicas > 1:
            settings = make_settings(directory, engine.url, **changes)
            async with replicated_gateway(settings, replicas, module) as gateway:
                yield BenchedGateway(engine, gateway.admin, gateway.processes())
            return
        async with started_gateway(directory, engine.url, module=module, more=more, **changes) as (
            admin,
            process,
        ):
            yield BenchedGateway(engine, admin, [process])


@asynccontextmanager
async def started_gateway(
    directory: Path,
    engine_url: str,
    *,
    module: str = GATEWAY,
    more: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[GatewayAdmin, psutil.Process]]:
    """Start a gateway's program, and end it; ``changes`` of its settings, ``more`` for the program
    of another module.
    """
    settings = make_settings(directory, engine_url, **changes)
    gateway = await Service.start(
        "gateway",
        module,
        settings.model_dump(mode="json") | dict(more or {}),
        log=directory / "gateway.log",
        deadline_s=120,
    )
    admin = GatewayAdmin(gateway.info["url"], gateway.info["admin_key"], deadline_s=600)
    try:
        yield admin, psutil.Process(gateway.pid)
    finally:
        await admin.close()
        await gateway.stop()


def make_settings(directory: Path, engine_url: str, **changes: Any) -> GatewaySettings:
    """Return settings of a gateway for a new run."""
    run_dir = directory / "run"
    RunStore.create(run_dir, {}).close()
    tokenizer = write_tiny_tokenizer(directory / "tokenizer")
    return settings_for(engine_url, tokenizer, run_dir, ping_s=10.0, turn_s=600.0, **changes)


def cpu_s(process: psutil.Process) -> float:
    """CPU time of all its threads, in nanoseconds' resolution (``cpu_times`` has 10 ms)."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
