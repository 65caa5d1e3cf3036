"""A load of long conversations that costs little, so that the gateway decides how many turns there
are: agents and an engine on bare connections, with everything prepared that can be.

On the wire is what real ones send: whole histories that grow by an answer and a tool's output each
turn, and answers that are streams, read to their end. An agent keeps its body in place and writes
each turn behind the last one; its text is known but for the id that the gateway gives to the call.
The engine counts the ids of a prompt, and answers; it keeps whole prompts of a turn before and one
after those that are measured, since more would drive the gateway's data out of a shared cache. They
and all answers are read as JSON when the clock has stopped (``check_turns``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Self, cast
from urllib.parse import urlsplit

import numpy as np
import orjson

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from tests.fakes.running_gateway import (
    TOOLS,
    assemble_message,
    echo,
    read_events,
    results,
    user,
)

CALL_ID = "toolu_" + "0" * 24
"""In place of an id that the gateway gives to a call, which is as long."""
BODY_END = b'],"stream":true}'
STREAM_END = b"\r\n0\r\n\r\n"
"""Of a body in chunks; JSON has no line breaks, so it is nowhere else."""
PROMPT_BYTES = 2 << 20
"""Of an engine's request, at most."""


class GrowingBody:
    """The body of an agent's next request: a conversation that grows at its end."""

    def __init__(self, output: str, answer: dict[str, Any], turns: int) -> None:
        """Begin with ``output`` as the task. Each of at most ``turns`` turns adds ``answer``, a
        message whose only call has ``CALL_ID``, and ``output`` as what its tool printed.
        """
        head = {"model": "policy", "max_tokens": 500, "tools": TOOLS, "messages": [user(output)]}
        opening = orjson.dumps(head).removesuffix(b"]}")
        self.added = b"," + orjson.dumps([echo(answer), results(answer, output)])[1:-1]
        """What a turn adds."""
        self.places = [found.start() for found in re.finditer(CALL_ID.encode(), self.added)]
        """Of ``CALL_ID`` in it."""
        self._memory = bytearray(len(opening) + turns * len(self.added) + len(BODY_END))
        self._memory[: len(opening)] = opening
        self._end = len(opening)

    def copy(self) -> GrowingBody:
        """Return one that goes on apart from this one."""
        other = object.__new__(GrowingBody)
        other.__dict__ = self.__dict__ | {"_memory": bytearray(self._memory)}
        return other

    def __len__(self) -> int:
        return self._end + len(BODY_END)

    def view(self) -> memoryview:
        """Return the body; it is to be read before the next turn is added."""
        self._memory[self._end : len(self)] = BODY_END
        return memoryview(self._memory)[: len(self)]

    def add_turn(self, call_id: bytes) -> None:
        """Add a turn whose call has got an id."""
        start, self._end = self._end, self._end + len(self.added)
        self._memory[start : self._end] = self.added
        for place in self.places:
            self._memory[start + place : start + place + len(call_id)] = call_id


class Agent(asyncio.Protocol):
    """An agent program: it sends its next request when the answer to the last one has ended."""

    def __init__(self, key: str, body: GrowingBody) -> None:
        self.body = body
        self.answers: list[bytes] = []
        """As they came, heads and all."""
        self._head = (
            "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n"
            f"content-type: application/json\r\nx-api-key: {key}\r\ncontent-length: "
        ).encode()
        self._answer = bytearray()
        self._left = 0
        self._done: asyncio.Future[None]
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, url: str, key: str, body: GrowingBody) -> Self:
        """Return one that is connected to a gateway and has the key of a session."""
        address, made = urlsplit(url), cls(key, body)
        host, port = address.hostname or "", address.port or 0
        await asyncio.get_running_loop().create_connection(lambda: made, host, port)
        return made

    async def take_turns(self, turns: int) -> None:
        """Take so many turns, one after the other."""
        self._left, self._done = turns, asyncio.get_running_loop().create_future()
        self._send()
        await self._done

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _send(self) -> None:
        self._transport.writelines(
            [self._head + b"%d\r\n\r\n" % len(self.body), self.body.view()],
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._answer += data
        if not _is_whole(self._answer):
            return
        answer = bytes(self._answer)
        self._answer.clear()
        self.answers.append(answer)
        at = answer.find(CALL_ID[:6].encode())
        if at < 0:
            raise AssertionError(f"no call: {answer!r}")
        self.body.add_turn(answer[at : at + len(CALL_ID)])
        self._left -= 1
        if self._left:
            self._send()
        else:
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        if self._left:
            self._done.set_exception(error or ConnectionResetError("the gateway left"))


class InstantEngine:
    """An engine that answers each prompt at once, in the same way; ``async with`` serves it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.url = ""
        self.counted: dict[str, list[int]] = {}
        """By session: how many ids its prompts had."""
        self.kept: dict[str, list[bytes]] = {}
        """By session: the JSON of those requests that came while ``keeps`` was set."""
        self.keeps = False
        self.answer: dict[str, Any]
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        scripted = ScriptedEngine().say(Completion(self.text))
        asked = {"rid": "r", "input_ids": [1], "sampling_params": {"max_new_tokens": 500}}
        body = orjson.dumps({**asked, "return_logprob": True})
        self.answer = orjson.loads(await scripted.request("POST", "/generate", body))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _EngineConnection(self), "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def forget(self) -> None:
        """Forget what came until now."""
        self.counted, self.kept = {}, {}

    def take_request(self, memory: bytearray, start: int, end: int) -> bytes:
        """Return the answer to the request that lies there, with its head."""
        rid = memory.index(b'"rid":"', start, end) + 7
        session = memory[rid : memory.index(b":", rid, end)].decode()
        counted = _count_ids(memory, start, end)
        self.counted.setdefault(session, []).append(counted)
        if self.keeps:
            self.kept.setdefault(session, []).append(bytes(memory[start:end]))
        self.answer["meta_info"]["prompt_tokens"] = counted
        body = orjson.dumps(self.answer)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)


class _EngineConnection(asyncio.BufferedProtocol):
    """One connection to an engine: a request at a time, read into one piece of memory."""

    def __init__(self, engine: InstantEngine) -> None:
        self._engine = engine
        self._memory = bytearray(PROMPT_BYTES)
        self._filled = 0
        self._start = self._end = 0
        """Of the request's body; 0: its head is not there yet."""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See ``asyncio.BufferedProtocol``."""
        return memoryview(self._memory)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._filled += nbytes
        if not self._end:
            self._start = self._memory.find(b"\r\n\r\n", 0, self._filled) + 4
            if self._start < 4:
                return
            self._end = self._start + _content_length(self._memory[: self._start])
        if self._filled < self._end:
            return
        answer = self._engine.take_request(self._memory, self._start, self._end)
        self._transport.write(answer)
        self._filled = self._end = 0


def _count_ids(memory: bytearray, start: int, end: int) -> int:
    """Return how many ids the request has that lies there."""
    start = memory.index(b'"input_ids":[', start, end)
    ids = np.frombuffer(memory, np.uint8)[start : memory.index(b"]", start, end)]
    return int(np.count_nonzero(ids == ord(",")) + 1)


def _is_whole(answer: bytearray) -> bool:
    start = answer.find(b"\r\n\r\n") + 4
    if start < 4:
        return False
    head = bytes(answer[:start]).lower()
    if b"chunked" in head:
        return answer.endswith(STREAM_END)
    return len(answer) >= start + _content_length(head)


def _content_length(head: bytes | bytearray) -> int:
    found = re.search(rb"content-length: *(\d+)\r", head, re.IGNORECASE)
    return int(found[1]) if found else 0


def check_turns(
    agents: Sequence[Agent], engine: InstantEngine, turns: int, *, repeats: bool
) -> None:
    """Raise AssertionError unless agents and engine have got what they should, in so many turns of
    each session; of the first and the last one the engine has kept the prompts.

    Each answer is the engine's, and stands in the history with the id that it came with; the engine
    has got each prompt. ``repeats``: each begins with the one before it and its answer.
    """
    for agent in agents:
        history = orjson.loads(agent.body.view())["messages"]
        assert len(agent.answers) == turns
        for came, kept in zip(reversed(agent.answers), reversed(history[1::2]), strict=False):
            message = assemble_message(read_events(read_stream(came)))
            assert kept == echo(message)
    assert len(engine.counted) == len(engine.kept) == len(agents)
    for session, counted in engine.counted.items():
        first, last = (orjson.loads(raw)["input_ids"] for raw in engine.kept[session])
        assert (counted[0], counted[-1], len(counted)) == (len(first), len(last), turns)
        assert counted == sorted(set(counted))
        if repeats:
            added, output = last[len(first) :], engine.answer["output_ids"]
            each = added[: len(added) // (turns - 1)]
            assert each[: len(output)] == output
            assert last == first + each * (turns - 1)
            assert counted == [len(first) + len(each) * turn for turn in range(turns)]


def read_stream(answer: bytes) -> bytes:
    """Return the body of an answer that came as one piece or in chunks; it is one of status 200."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    if b"chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body
