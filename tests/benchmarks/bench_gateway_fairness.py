"""How long other sessions wait for what one session sends to the gateway.

    python -m tests.benchmarks.bench_gateway_fairness
    python -m tests.benchmarks.bench_gateway_fairness --sessions 64 --seconds 15 --attack bodies

The gateway runs in its own process. Sessions take turns of a usual size, with a pause between them;
the engine answers at once. For each attack one more session sends what it can, from a process of
its own, so that its own work is not in the way of the clients. A turn's wait is its wall time; the
extra wait is how much it exceeds the turn's median wait without an attack. ``stall`` is how late
a timer of the gateway's own loop would be: the wait of a request that needs no work (``/health``).
On a machine with few cores all processes compete; run it with nothing else.

    python -m tests.benchmarks.bench_gateway_fairness --holds

prints what a busy machine does not change: the longest CPU time for which one step of a
coroutine held the loop, with its name, and for which a timer waited (``timed_gateway.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop

from tests.benchmarks.benched_gateway import OUTPUT, BenchedGateway, benched_gateway
from tests.fakes.running_gateway import LIMITS, user

CONTEXT_TOKENS = 400_000
TURNS = 8
"""Per conversation; then the session begins another one."""

Send = Callable[[aiohttp.ClientSession, str, str], Awaitable[object]]
"""One step of an attack: client, URL of the gateway, key."""


def _messages(text: str, **more: Any) -> bytes:
    return orjson.dumps({"model": "policy", "max_tokens": 500, "messages": [user(text)], **more})


def _post(path: str, body: bytes) -> Send:
    async def send(http: aiohttp.ClientSession, url: str, key: str) -> None:
        async with http.post(url + path, data=body, headers={"x-api-key": key}) as response:
            await response.read()

    return send


def _post_new(make_body: Callable[[str], bytes]) -> Send:
    """Return a step that posts a body of its own each time: a repeated one is answered at once."""

    async def send(http: aiohttp.ClientSession, url: str, key: str) -> None:
        body = make_body(f"{random.random()} ")
        await _post("/v1/messages", body)(http, url, key)

    return send


async def open_connections(http: aiohttp.ClientSession, url: str, key: str) -> None:
    """Open many connections, with and without a key, and say nothing on them."""
    host, port = url.removeprefix("http://").split(":")
    line = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n".encode()
    opened = []
    for number in range(300):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            if number % 2:
                writer.write(line)
            opened.append(writer)
    await asyncio.sleep(1)
    for writer in opened:
        writer.close()


async def read_slowly(http: aiohttp.ClientSession, url: str, key: str) -> None:
    """Ask for more than the kernel's buffers hold, and read nothing."""
    host, port = url.removeprefix("http://").split(":")
    line = f"GET /v1/models/{'m' * 7000} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n"
    writers = []
    for _ in range(8):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(line.encode() * 1000)
            writers.append(writer)
    await asyncio.sleep(2)
    for writer in writers:
        writer.transport.abort()


async def send_chunks(http: aiohttp.ClientSession, url: str, key: str) -> None:
    """Send a body in chunks of one byte, which cost the parser more than any other bytes."""
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n"
    _, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(200):
            writer.write(b"1\r\n \r\n" * 10_000)
            await writer.drain()
    finally:
        writer.transport.abort()


def make_history(name: str) -> bytes:
    """Return a request of 128 turns and some 60,000 tokens."""
    messages = [user(name)]
    for number in range(128):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"n": number}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": OUTPUT * 8}
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [result]})
    return orjson.dumps({"model": "policy", "max_tokens": 500, "messages": messages})


def attacks() -> dict[str, Send]:
    """Return the attacks, by name."""
    long_text = OUTPUT * (800_000 // len(OUTPUT))  # about 200 000 tokens of a real tokenizer
    return {
        "bodies": _post("/v1/messages", _messages(OUTPUT * (8_000_000 // len(OUTPUT)))),
        "spaces": _post("/v1/messages", _messages(" " * 6_000_000)),
        "depth": _post("/v1/chat/completions", b'{"messages":' + b"[" * 8_000_000),
        "values": _post("/v1/messages", b'{"messages":[' + b"[]," * 2_700_000 + b"1]}"),
        "faults": _post("/v1/messages", b'{"messages":[' + b"1," * 90_000 + b"1]}"),
        "prompts": _post("/v1/messages", _messages(long_text)),
        "counts": _post(
            "/v1/messages/count_tokens",
            orjson.dumps({"model": "policy", "messages": [user(long_text)]}),
        ),
        # Just below what is handed to a process (runners/gateway/texts/texts.py).
        "texts": _post_new(lambda name: _messages(name + OUTPUT * (15_900 // len(OUTPUT)))),
        "halves": _post_new(lambda name: _messages("Fix it.", metadata={name: "x" * 1_000_000})),
        "pieces": _post_new(
            lambda name: orjson.dumps(
                {
                    **{"model": "policy", "max_tokens": 500},
                    "messages": [user(name), *([user("go on")] * 4_900)],
                }
            )
        ),
        # A conversation of an agent that comes whole, as after a fork or a resumed session.
        "histories": _post_new(make_history),
        "connections": open_connections,
        "readers": read_slowly,
        "chunks": send_chunks,
    }


def attack(name: str, url: str, key: str, width: int) -> None:
    """Run one attack until the process is ended."""
    os.nice(10)  # what it sends is measured, not the processor that it takes from the clients

    async def run() -> None:
        send = attacks()[name]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:

            async def repeat() -> None:
                while True:
                    with suppress(aiohttp.ClientError, OSError):
                        await send(http, url, key)
                    await asyncio.sleep(0.005)

            await asyncio.gather(*(repeat() for _ in range(width)))

    uvloop.run(run())


async def work(
    gateway: BenchedGateway,
    http: aiohttp.ClientSession,
    key: str,
    waits: list[float],
    pause_s: float,
) -> None:
    """Take turns as an agent program does, and note how long each took."""
    conversation = 0
    await asyncio.sleep(random.uniform(0, pause_s))  # else all ask at the same moment
    while True:
        conversation += 1
        messages: list[dict[str, Any]] = [user(f"Fix bug {conversation}. {OUTPUT}")]
        for _ in range(TURNS):
            await asyncio.sleep(random.uniform(0, 2 * pause_s))
            began = time.perf_counter()
            await gateway.take_turn(http, key, messages)
            waits.append(time.perf_counter() - began)


async def probe(http: aiohttp.ClientSession, url: str, stalls: list[float]) -> None:
    """Note how long the gateway's loop takes to answer what needs no work."""
    while True:
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        async with http.get(f"{url}/health") as response:
            await response.read()
        stalls.append(time.perf_counter() - began)


async def measure(
    gateway: BenchedGateway, keys: list[str], seconds: float, pause_s: float
) -> tuple[list[float], list[float]]:
    """Let the sessions work for a while; return the waits of their turns, and the stalls."""
    waits: list[float] = []
    stalls: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        tasks = [asyncio.create_task(work(gateway, http, key, waits, pause_s)) for key in keys]
        tasks.append(asyncio.create_task(probe(http, gateway.admin.urls[0], stalls)))
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [error for error in found if not isinstance(error, asyncio.CancelledError)]
    assert not failures, failures[0]
    return waits, stalls


def row(name: str, waits: list[float], stalls: list[float], median: float) -> str:
    """Return a table's line; times are milliseconds."""
    extra = sorted(1000 * (wait - median) for wait in waits)
    late = sorted(1000 * stall for stall in stalls)

    def at(values: list[float], share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    figures = [
        *(at(extra, 0.5), at(extra, 0.99), extra[-1]),
        *(at(late, 0.5), at(late, 0.99), late[-1]),
    ]
    return f"{name:>12} {len(waits):>6} " + " ".join(f"{figure:>9.1f}" for figure in figures)


def take_holds(file: Path) -> str:
    """Return the longest times for which the gateway's loop was held, and forget all of them."""
    if not file.exists():
        return ""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    os.truncate(file, 0)
    longest = {
        kind: max(
            (hold for hold in found if hold["kind"] == kind), key=lambda h: h["ms"], default=None
        )
        for kind in ("step", "wait")
    }
    return "".join(
        f"\n{'':>13}longest {kind}: {hold['ms']:.1f} ms {hold['name']}"
        for kind, hold in longest.items()
        if hold is not None
    )


async def run(wanted: argparse.Namespace, directory: Path) -> None:
    """Measure without and with each attack, and print a table."""
    holds = directory / "holds"
    module, more = "runners.gateway", {}
    if wanted.holds:
        holds.touch()
        module, more = "tests.benchmarks.timed_gateway", {"holds": str(holds)}
    async with benched_gateway(
        directory,
        module=module,
        more=more,
        max_context_tokens=CONTEXT_TOKENS,
        limits={**LIMITS, "text_workers": 4},
    ) as gateway:
        admin = gateway.admin
        keys = [(await admin.create_session(f"s{number}"))[1] for number in range(wanted.sessions)]
        _, warm = await admin.create_session("warm-up")
        async with aiohttp.ClientSession() as http:  # starts the processes for long texts
            await _post("/v1/messages", _messages(OUTPUT * 400))(http, admin.urls[0], warm)
        take_holds(holds)
        calm, stalls = await measure(gateway, keys, wanted.seconds, wanted.pause)
        median = statistics.median(calm)
        print(f"{wanted.sessions} sessions; a turn's median wait is {1000 * median:.1f} ms")
        print("                    |  extra wait of a turn, ms  |       /health, ms")
        print("      attack  turns       p50       p99       max       p50       p99       max")
        print(row("none", calm, stalls, median) + take_holds(holds), flush=True)
        for name in wanted.attack or attacks():
            line = await measure_attack(name, gateway, keys, wanted, median)
            print(line + take_holds(holds), flush=True)
        print(f"gateway memory: {gateway.processes[0].memory_info().rss >> 20} MB")


async def measure_attack(
    name: str, gateway: BenchedGateway, keys: list[str], wanted: argparse.Namespace, median: float
) -> str:
    """Measure while a session attacks; return a table's line."""
    admin = gateway.admin
    _, key = await admin.create_session(f"attacker-{name}")
    process = multiprocessing.get_context("spawn").Process(
        target=attack, args=(name, admin.urls[0], key, wanted.width), daemon=True
    )
    process.start()
    try:
        await asyncio.sleep(3)  # it starts
        waits, stalls = await measure(gateway, keys, wanted.seconds, wanted.pause)
    finally:
        process.kill()
        process.join()
    await admin.delete(f"attacker-{name}")
    return row(name, waits, stalls, median)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8, help="per attack")
    parser.add_argument("--pause", type=float, default=2, help="seconds between a session's turns")
    parser.add_argument("--width", type=int, default=4, help="requests of the attacker at once")
    parser.add_argument("--holds", action="store_true", help="time what holds the gateway's loop")
    parser.add_argument("--attack", action="append", choices=sorted(attacks()))
    wanted = parser.parse_args()
    gc.disable()  # a pause of this process, whose clients measure, would count as the gateway's
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(run(wanted, Path(directory)))


if __name__ == "__main__":
    main()
