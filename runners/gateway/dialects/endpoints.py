"""The endpoints that take a conversation, by path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runners.gateway.dialects import anthropic, google, openai_chat, openai_responses
from runners.gateway.dialects.contract import Dialect, ParsedRequest
from runners.gateway.refusal import RefusalKind, Refused

GENERATE = "/v1beta/models/{model}:generateContent"
"""Google's, streamed or not."""

TURNS: dict[str, Dialect[Any, Any]] = {
    "/v1/messages": anthropic.TURN,
    "/v1/chat/completions": openai_chat.TURN,
    "/v1/responses": openai_responses.TURN,
    GENERATE: google.TURN,
}
"""Those that take a turn."""

COUNT = "/v1/messages/count_tokens"
GOOGLE_COUNT = "/v1beta/models/{model}:countTokens"
COUNTS: dict[str, str] = {COUNT: "input_tokens", GOOGLE_COUNT: "totalTokens"}
"""Those that count the tokens of a prompt, with the member of the answer that has the number."""

DIALECTS: dict[str, Dialect[Any, Any]] = {
    **TURNS,
    COUNT: anthropic.COUNT,
    GOOGLE_COUNT: google.COUNT,
}

_GOOGLE_PATH = re.compile(r"/v1(?:beta)?/models/(?P<model>.+):(?P<method>\w+)")
_GOOGLE_METHODS = {
    "generateContent": GENERATE,
    "streamGenerateContent": GENERATE,
    "countTokens": GOOGLE_COUNT,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint that a request asks, and what its URL says of the turn."""

    path: str
    """As in ``DIALECTS``, if it takes a conversation."""
    model: str | None = None
    stream: bool = False

    def add_url(self, parsed: ParsedRequest) -> ParsedRequest:
        """Return a parsed request with what its URL says, where an API has it there."""
        if self.model is None:
            return parsed
        return replace(
            parsed, request=replace(parsed.request, model=self.model), stream=self.stream
        )


def find_endpoint(path: str, query: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of a URL; raises Refused if it asks for a stream of another form."""
    found = _GOOGLE_PATH.fullmatch(path)
    if found is None or found["method"] not in _GOOGLE_METHODS:
        return Endpoint(path)
    stream = found["method"] == "streamGenerateContent"
    if stream and query.get("alt") != "sse":
        raise Refused(RefusalKind.INVALID, "streams are server-sent events: ask with ?alt=sse")
    return Endpoint(_GOOGLE_METHODS[found["method"]], found["model"], stream)
