"""The client of endpoints: APIs that take a conversation as texts and answer with texts.

Invariants: a request is built of the conversation alone, with the run's model and sampling; an
answer has the endpoint's own count of tokens. A generation that is given up ends with its
connection.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace

import orjson

from conf.sections.engine import AnthropicEngineConfig, EndpointEngineConfig, OpenaiEngineConfig
from runners.engines.connection import (
    Connection,
    EngineClient,
    HttpConnection,
    status_error,
    unreadable_error,
)
from runners.engines.contract import (
    Conversation,
    EngineError,
    Generation,
    SamplingParams,
    TokenIds,
)
from runners.engines.endpoints.anthropic_api import AnthropicApi
from runners.engines.endpoints.api import MODELS, EndpointApi
from runners.engines.endpoints.openai_api import OpenaiApi
from runners.engines.fixed_weights import FixedWeights

SHORT_DEADLINE_S = 10.0
"""For requests that sample nothing."""
BROKEN_STATUS = 502
"""Status of an answer that is an error, where it names none (routers between vendors do so)."""

_USED = (
    re.compile(r"context length is (?P<limit>\d+) .*?\((?P<prompt>\d+) in the messages"),
    re.compile(r"context length is (?P<limit>\d+) .*?has (?P<prompt>\d+) input tokens"),
    re.compile(r"passed (?P<prompt>\d+) input tokens.*?context length is only (?P<limit>\d+)"),
    re.compile(r"exceed context limit: (?P<prompt>\d+) \+ \d+ > (?P<limit>\d+)"),
)
"""Errors of OpenAI, vLLM (three versions) and Anthropic for a prompt that exceeds the context with
its answer.
"""


class EndpointEngine(EngineClient, FixedWeights):
    """An ``Engine`` behind an endpoint."""

    def __init__(
        self,
        section: EndpointEngineConfig,
        *,
        deadline_s: float = 600.0,
        connection: Connection | None = None,
    ) -> None:
        """Remember the address, with or without ``/v1``; nothing is opened before the first call.

        ``deadline_s`` bounds one generation.
        """
        name = section.url.rstrip("/").removesuffix("/v1")
        self.api: EndpointApi = _choose_api(section)
        super().__init__(name, connection or HttpConnection(name, key_headers=self.api.key_headers))
        self._deadline_s = deadline_s

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Ask for the next message of ``params.conversation``; ``input_ids`` is empty.

        If prompt and answer together exceed the context, and the endpoint says by how much, the
        answer is limited to what is left, as it is with an engine that takes ids.
        """
        assert params.conversation is not None
        try:
            return await self._ask(params.conversation, params)
        except EngineError as error:
            room = find_room(str(error)) if error.too_long else 0
            if not 0 < room < params.max_new_tokens:
                raise
            return await self._ask(params.conversation, replace(params, max_new_tokens=room))

    async def list_models(self) -> list[str]:
        """Return the names of the models that it lists; raises EngineError."""
        answer = await self.request_json(
            MODELS, deadline_s=SHORT_DEADLINE_S, headers=self.api.headers
        )
        try:
            return [str(model["id"]) for model in answer["data"]]
        except (KeyError, TypeError) as error:
            raise unreadable_error(self.name, MODELS, error) from error

    async def _ask(self, prompt: Conversation, params: SamplingParams) -> Generation:
        path, began = self.api.PATH, time.perf_counter()
        body = self.api.build_request(prompt, params)
        answer = await self.request_json(
            path, body, deadline_s=self._deadline_s, headers=self.api.headers
        )
        if (fault := answer.get("error")) is not None:
            code = fault.get("code") if isinstance(fault, dict) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else BROKEN_STATUS
            raise status_error(self.name, path, status, orjson.dumps(answer), {})
        try:
            return self.api.read_answer(answer, time.perf_counter() - began)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            reason = ValueError(f"{type(error).__name__}: {error}")
            raise unreadable_error(self.name, path, reason) from error


def find_room(message: str) -> int:
    """Return the tokens that an error says are left for an answer; 0 if it does not say.

    >>> find_room("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000")
    10000
    """
    for pattern in _USED:
        if found := pattern.search(message):
            return max(0, int(found["limit"]) - int(found["prompt"]))
    return 0


def _choose_api(section: EndpointEngineConfig) -> EndpointApi:
    match section:
        case OpenaiEngineConfig():
            return OpenaiApi(section)
        case AnthropicEngineConfig():
            return AnthropicApi(section)
    raise AssertionError(section.kind)
