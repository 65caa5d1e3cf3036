"""A gateway that hangs, lies, answers garbage or sends without end fails with a clear message."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.referee.adapters import FileGateway, read_samples
from agentrl.referee.clients import APIS, ApiClient, HttpClient, post
from agentrl.referee.conversation import RefereeError, TrainedSample
from agentrl.referee.judge import Cell
from agentrl.referee.policy import CueEngine, Vocabulary
from agentrl.referee.program import Scenario
from agentrl.referee.report import describe_run, explain, write_page, write_totals
from agentrl.referee.trial import Trial

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
SAMPLES: dict[str, Any] = {"samples": []}


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def trickle(request: web.Request) -> web.StreamResponse:
    """Send a byte now and then, for ever."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in itertools.count():
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(64):
        await response.write(b"x" * 2**20)
    return response


def say(body: bytes, kind: str = "application/json", status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=kind, status=status)

    return answer


class Hostile:
    """A gateway at an address, whose samples come from there, too."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url
        self.timeout_s = timeout_s

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        return HttpClient(wire, self.url, {}, self.timeout_s), None

    async def finish(self, handle: Any) -> list[TrainedSample]:
        raw, _ = await post(f"{self.url}/finish", b"{}", {}, self.timeout_s)
        return read_samples(json.loads(raw)["samples"])


@asynccontextmanager
async def serving(
    answer: Answer, samples: Any = SAMPLES, timeout_s: float = 30
) -> AsyncIterator[Hostile]:
    """Serve a gateway whose four APIs answer so."""

    async def finish(request: web.Request) -> web.StreamResponse:
        if isinstance(samples, bytes):
            return web.Response(body=samples)
        return web.json_response(samples)

    app = web.Application()
    app.router.add_post("/finish", finish)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield Hostile(url, timeout_s)
    finally:
        await runner.cleanup()


async def judge(
    vocabulary: Vocabulary, gateway: Any, scenario: Scenario, wire: str = "chat"
) -> tuple[Cell, str]:
    """Return a cell and its story."""
    cell = await Trial(gateway, CueEngine(vocabulary)).run_cell(scenario, wire)
    run = json.loads(json.dumps(describe_run([cell], vocabulary, gateway="<b>")))
    assert "<b>" not in write_page(run)
    assert write_totals(run)
    return cell, "\n".join(explain(run, scenario.name))


DEEP = b"[" * 100_000
LATE = "no answer within 1 s"
BAD: dict[str, tuple[Answer, str]] = {
    "hangs": (hang, LATE),
    "cuts": (cut, "the connection failed"),
    "trickles": (trickle, LATE),
    "floods": (flood, "an answer of over 32 MB"),
    "says nothing": (say(b""), "(nothing)"),
    "says HTML": (say(b"<html>\x00\xff no", "text/html"), "<html>"),
    "says null": (say(b"null"), "not as the API has it"),
    "says a list": (say(b"[]"), "not as the API has it"),
    "says numbers": (
        say(b'{"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}'),
        "not as the API has it",
    ),
    "nests": (say(DEEP), "RecursionError"),
    "fails": (say(b'{"error": "\xf0\x9f\x98"}', status=500), "HTTP 500"),
    "redirects": (say(b"", status=302), "HTTP 302"),
    "says an error": (say(b'{"error": {"message": "no"}}'), "an error in the answer"),
}


@pytest.mark.parametrize("name", list(BAD))
async def test_a_bad_answer_is_a_message(
    name: str, vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    answer, wanted = BAD[name]
    async with serving(answer, timeout_s=1 if wanted == LATE else 30) as gateway:
        for scenario in (scenarios["linear"], scenarios["streamed"]):
            cell, story = await judge(vocabulary, gateway, scenario)
            assert cell.state == "lost"
            assert cell.scores["refused"] == 1
            if scenario.stream and "stream" in story:
                continue  # no stream came at all
            assert wanted in story


STREAMS = {
    "no events": b"",
    "garbage": b"data: {no\n\n",
    "a list": b"data: []\n\n",
    "no end": b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n',
    "an unknown event": b'data: {"type": "content_block_delta", "index": 7, "delta": {}}\n\n',
    "an error": b'data: {"type": "error", "error": {"message": "no"}}\n\n',
}


@pytest.mark.parametrize("wire", list(APIS))
@pytest.mark.parametrize("name", list(STREAMS))
async def test_a_bad_stream_is_a_message(
    name: str, wire: str, vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    async with serving(say(STREAMS[name], "text/event-stream")) as gateway:
        cell, story = await judge(vocabulary, gateway, scenarios["streamed"], wire)
    assert cell.state == "lost"
    assert "refused: request 0: " in story


LIES: dict[str, Any] = {
    "no samples": ({"samples": None}, "samples have to be a list"),
    "a number": ({"samples": [5]}, "has to be lists of numbers"),
    "no tokens": ({"samples": [{"mask": [1]}]}, "has to be lists of numbers"),
    "texts": ({"samples": [{"tokens": ["a"], "mask": [1]}]}, "has to be lists of numbers"),
    "another length": ({"samples": [{"tokens": [1, 2], "mask": [1]}]}, "different lengths"),
    "another mask": ({"samples": [{"tokens": [1], "mask": [7]}]}, "a mask has 0 and 1 alone"),
    "no number": (b'{"samples": [{"tokens": [1], "mask": [1], "logprobs": [NaN]}]}', "no number"),
    "infinite tokens": (b'{"samples": [{"tokens": [Infinity], "mask": [1]}]}', "lists of numbers"),
}


@pytest.mark.parametrize("name", list(LIES))
async def test_samples_that_cannot_be_read_are_a_message(
    name: str, vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    samples, wanted = LIES[name]
    async with serving(say(b"", status=500), samples) as gateway:
        cell, story = await judge(vocabulary, gateway, scenarios["linear"])
    assert cell.state == "lost"
    assert f"finish: {wanted}" in story or wanted in story


async def test_invented_samples_and_answers_are_seen(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    answer = {"choices": [{"message": {"content": "made up"}, "finish_reason": "stop"}]}
    samples = {"samples": [{"tokens": [1, 2, 3], "mask": [0, 1, 1]}]}
    async with serving(say(json.dumps(answer).encode()), samples) as gateway:
        cell, story = await judge(vocabulary, gateway, scenarios["chat_only"])
    assert cell.state == "wrong"
    assert cell.scores["invented"] == 2
    assert cell.scores["calls"] == 4
    assert "was never sampled" in story


async def test_a_gateway_that_never_answers_ends_the_run(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    async with serving(hang, timeout_s=1) as gateway:
        trial = Trial(gateway, CueEngine(vocabulary))
        cells, ended = await trial.run(scenarios.values(), ["chat"])
    assert len(cells) == 3
    assert "3 scenarios in a row got no answer: " in ended
    assert LATE in ended
    trial = Trial(Hostile("http://127.0.0.1:9", 1), CueEngine(vocabulary))
    cells, ended = await trial.run(scenarios.values(), ["chat"])
    assert "the connection failed" in ended


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("raise ValueError('no')", "no"),
        ("def open(): ...", "finish"),
        ("def open(: ", "SyntaxError"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_refused(
    source: str, wanted: str, tmp_path: Path
) -> None:
    file = tmp_path / "adapter.py"
    file.write_text(source)
    with pytest.raises(RefereeError, match=wanted):
        FileGateway(file)


ADAPTERS = {
    "raise ValueError('secret')": "the adapter's open() raised ValueError: secret",
    "import time; time.sleep(3)": "the adapter's open() did not return within 0.2 s",
    "return 5, {}, 1": "has to return (url, headers, handle)",
    "return 'http://h', 5, 1": "has to return (url, headers, handle)",
    "return 'ftp://h', {}, 1": "the connection failed",
    "return 'http://h', {'a': 1}, 1": "the connection failed",
    "return 5": "has to return (url, headers, handle)",
}


@pytest.mark.parametrize("body", list(ADAPTERS))
async def test_an_adapter_that_fails_is_a_message(
    body: str, tmp_path: Path, vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    file = tmp_path / "adapter.py"
    file.write_text(f"def open():\n    {body}\ndef finish(handle): return []\n")
    cell, story = await judge(vocabulary, FileGateway(file, 0.2), scenarios["linear"])
    assert cell.state == "lost"
    assert ADAPTERS[body] in story


async def test_a_gateway_that_starts_late_is_waited_for(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    file = tmp_path / "adapter.py"
    file.write_text(
        "asked = []\n"
        "def start(engine, tokenizer): asked.append((engine, tokenizer))\n"
        "def open():\n"
        "    asked.append('open')\n"
        "    if len(asked) < 3: raise ConnectionRefusedError('not yet')\n"
        "    return 'http://h', {}, asked\n"
        "def finish(handle): return []\n"
    )
    gateway = FileGateway(file)
    await gateway.start("http://e", vocabulary.directory)
    _, handle = await gateway.open("chat")
    assert handle == [("http://e", str(vocabulary.directory)), "open", "open"]
