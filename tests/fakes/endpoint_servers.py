"""The part that the stand-ins for endpoints of texts share.

They were not recorded from the vendors: ``openai_server`` and ``anthropic_server`` name the
documents that they follow. Their answers parse with the models of the packages ``openai`` 3.54 and
``anthropic`` 2.12, and what agentrl sends fits those packages' types (sampling settings: those of
``anthropic`` 0.125, since version 1 has none). That was tried by hand and is not a test, since
neither package is a dependency. A request with a field that the API does not have is refused, as
the vendors refuse it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import orjson
from aiohttp import web

from agentrl.testing.loopback_server import LoopbackServer

MODEL = "served-model"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a scripted answer."""

    name: str
    arguments: dict[str, Any] | str
    """A text is sent as it is, by OpenAI's API only."""


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """One scripted answer."""

    text: str = "ok"
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    finish: str | None = None
    """The vendor's own reason; None: the one that fits."""
    stop: str | None = None
    """The stop string that ended it."""
    prompt_tokens: int | None = None
    """None: one per word of the request."""
    completion_tokens: int = 7
    cached_tokens: int = 0
    delay_s: float = 0.0
    status: int = 200
    message: str = "scripted fault"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """Replaces the whole body."""
    cut: bool = False
    """The connection ends before the answer."""


Answer = TextAnswer | str
MakeAnswer = Callable[[dict[str, Any]], TextAnswer]


class EndpointServer(LoopbackServer):
    """The part that both stand-ins share."""

    path = ""
    known_fields: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        self.fields = self.known_fields
        self.script: deque[TextAnswer] = deque()
        """The next answers; with an empty script the answer is ``make_answer``'s."""
        self.make_answer: MakeAnswer = lambda body: TextAnswer()
        self.models: list[str] = [MODEL]
        self.lists_models = True
        self.context = 1_000_000
        self.api_key: str | None = None
        self.requests: list[dict[str, Any]] = []
        """Bodies of the conversations."""
        self.headers: list[dict[str, str]] = []
        """Headers of every request, names in lower case."""
        self.disconnected = 0
        self.arrived = asyncio.Event()

    def say(self, *answers: Answer) -> Self:
        """Add answers to the script."""
        self.script += [TextAnswer(each) if isinstance(each, str) else each for each in answers]
        return self

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.headers.append(headers)
        if (refusal := self.find_header_fault(headers)) is not None:
            return refusal
        if request.path == "/v1/models" and self.lists_models:
            return json_response(
                {"object": "list", "data": [self.describe(each) for each in self.models]}
            )
        if request.path == self.path and request.method == "POST":
            return await self._answer(request, orjson.loads(await request.read()))
        return self.error(404, f"Invalid URL ({request.method} {request.path})")

    async def _answer(self, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        self.requests.append(body)
        if unknown := set(body) - self.fields:
            return self.error(400, f"Unrecognized request argument supplied: {sorted(unknown)}")
        if body["model"] not in self.models:
            return self.error(404, f"The model `{body['model']}` does not exist")
        if (fault := self.find_fault(body)) is not None:
            return self.error(400, fault)
        answer = self.script.popleft() if self.script else self.make_answer(body)
        self.arrived.set()
        try:
            await asyncio.sleep(answer.delay_s)
        except asyncio.CancelledError:
            self.disconnected += 1
            raise
        if answer.cut:
            assert request.transport is not None
            request.transport.abort()
        if answer.body is not None:
            return json_response(answer.body, answer.status, answer.headers)
        if answer.status != 200:
            return self.error(answer.status, answer.message, answer.headers)
        prompt = answer.prompt_tokens
        if prompt is None:
            prompt = len(orjson.dumps(body["messages"]).split())
        if prompt > self.context:
            return self.too_long(prompt, body)
        return json_response(self.write(body, answer, prompt))

    def find_header_fault(self, headers: Mapping[str, str]) -> web.Response | None:
        """Return the refusal of a request with these headers; None if they are right."""
        raise NotImplementedError

    def find_fault(self, body: dict[str, Any]) -> str | None:
        """Return what is wrong with a request; None if nothing is."""
        raise NotImplementedError

    def describe(self, model: str) -> dict[str, Any]:
        """Return a model's entry in the list."""
        raise NotImplementedError

    def error(
        self, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """Return an error in the API's envelope."""
        raise NotImplementedError

    def too_long(self, prompt: int, body: dict[str, Any]) -> web.Response:
        """Return the refusal of a prompt that exceeds the context."""
        raise NotImplementedError

    def write(self, body: dict[str, Any], answer: TextAnswer, prompt: int) -> dict[str, Any]:
        """Return the body that answers."""
        raise NotImplementedError


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a JSON answer."""
    return web.Response(
        body=orjson.dumps(value),
        status=status,
        headers={"content-type": "application/json", **(headers or {})},
    )
