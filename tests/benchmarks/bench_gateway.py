"""The gateway's own cost: CPU per turn and memory per session, with an engine that answers at once.

    python -m tests.benchmarks.bench_gateway
    python -m tests.benchmarks.bench_gateway --sessions 4 --turns 40 --prompt-chars 130000

The gateway runs in its own process; engine and agents run in this one and are not counted. Memory
is what the gateway's private memory (USS) grew by while all sessions were open, per session.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
import uvloop

from runners.gateway.client import GatewayAdmin
from runners.service import Service
from runners.trajectory.store import RunStore
from tests.fakes.scripted_engine import Completion, ScriptedEngine, spoken
from tests.fakes.tiny_tokenizer import write_tiny_tokenizer
from tests.runners.gateway.running import (
    TOOLS,
    assembled,
    echo,
    events,
    results,
    settings_for,
    user,
)

CALL = spoken(
    [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "Bash", "input": {"command": "cat calc.py | head -40"}},
    ]
)
OUTPUT = "def add(a, b):\n    return a - b\n" * 4


async def converse(
    http: aiohttp.ClientSession, url: str, key: str, prompt: str, turns: int
) -> None:
    """Play one agent."""
    messages = [user(prompt)]
    for _ in range(turns):
        body = {"model": "policy", "max_tokens": 500, "tools": TOOLS, "messages": messages}
        async with http.post(
            f"{url}/v1/messages",
            data=orjson.dumps({**body, "stream": True}),
            headers={"x-api-key": key},
        ) as response:
            answer = assembled(events(await response.read()))
        messages += [echo(answer), results(answer, OUTPUT)]


async def measure(sessions: int, turns: int, prompt_chars: int, directory: Path) -> dict[str, Any]:
    """Run the sessions at once; return the figures."""
    run_dir = directory / "run"
    RunStore.create(run_dir, {}).close()
    prompt = ("Fix the bug: add subtracts. " * (prompt_chars // 28 + 1))[:prompt_chars]
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as http:
        engine.always = Completion(CALL)
        tokenizer = write_tiny_tokenizer(directory / "tokenizer")
        settings = settings_for(engine.url, tokenizer, run_dir, ping_s=10.0, turn_s=600.0)
        gateway = await Service.start(
            "gateway",
            "runners.gateway",
            {**settings, "max_context_tokens": 10**6},
            log=directory / "gateway.log",
            deadline_s=60,
        )
        admin = GatewayAdmin(gateway.info["url"], gateway.info["admin_key"])
        process = psutil.Process(gateway.pid)
        try:
            _, key = await admin.create_session("warm-up")
            await converse(http, admin.url, key, "warm up", 20)
            keys = [(await admin.create_session(f"s{i}"))[1] for i in range(sessions)]
            memory, used, began = (
                process.memory_full_info().uss,
                process.cpu_times(),
                time.monotonic(),
            )
            await asyncio.gather(*(converse(http, admin.url, key, prompt, turns) for key in keys))
            wall, after = time.monotonic() - began, process.cpu_times()
            grown = process.memory_full_info().uss - memory
            stats = await admin.stats("s0")
            before_end = process.cpu_times()
            for i in range(sessions):
                await admin.finish(f"s{i}")
                await admin.delete(f"s{i}")
            ended = process.cpu_times()
        finally:
            await admin.close()
            await gateway.stop()
        context = len(engine.seen.requests[-1]["input_ids"])
    cpu = after.user + after.system - used.user - used.system
    ending = ended.user + ended.system - before_end.user - before_end.system
    return {
        "sessions": sessions,
        "turns": sessions * turns,
        "context_tokens": context,
        "breaks": len(stats["breaks"]),
        "cpu_ms_per_turn": round(1000 * cpu / (sessions * turns), 3),
        "turns_per_s": round(sessions * turns / wall, 1),
        "cpu_ms_per_session_end": round(1000 * ending / sessions, 3),
        "kb_per_session": round(grown / sessions / 1024, 1),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8, help="per session")
    parser.add_argument("--prompt-chars", type=int, default=1500)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(
            json.dumps(
                uvloop.run(
                    measure(wanted.sessions, wanted.turns, wanted.prompt_chars, Path(directory))
                )
            )
        )


if __name__ == "__main__":
    main()
