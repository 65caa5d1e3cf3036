"""Requests and answers of the gateway's HTTP, whatever they are about: the key that a request
brings, its body within the limits, errors in the envelope of its API.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext

import orjson
from aiohttp import web

from conf.errors import AgentrlError
from conf.sections.gateway import GatewayLimitsConfig
from runners.gateway.dialects import anthropic, google, openai
from runners.gateway.dialects.contract import Vendor
from runners.gateway.refusal import OverLimit, RefusalKind, Refused
from runners.gateway.request_limits import RequestBudget, check_body_size

logger = logging.getLogger(__name__)

HEALTH = ("/", "/health", "/api/hello")
ADMIN = "/admin/"
GOOGLE_KEY = "x-goog-api-key"
OPENAI_ENDPOINTS = ("/v1/chat/completions", "/v1/responses")


async def answer_safely(
    request: web.BaseRequest, answer: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request; any failure of it becomes an error envelope."""
    try:
        return await answer()
    except (ConnectionError, TimeoutError) as error:
        # The client is gone, or does not take what it is sent. The connection is aborted, not
        # closed: a close would wait until the client has taken the buffered rest.
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client left") from error
    except Exception as error:
        return error_answer(vendor_of(request), refuse_for(error))


def path_of(request: web.BaseRequest) -> str:
    """Return the path of a request, as endpoints are named."""
    return request.path.rstrip("/") or "/"


def key_of(headers: Mapping[str, str]) -> str:
    """Return the bearer token, x-api-key, or Google's header; "" if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key") or headers.get(GOOGLE_KEY, "")


def url_key_of(request: web.BaseRequest) -> str:
    """Return the key that Google's clients may send in the URL, "" if there is none."""
    return request.query.get("key", "")


def vendor_of(request: web.BaseRequest) -> Vendor:
    """Return the vendor of a client's API: by the endpoint, or by its header."""
    path = request.path
    if path.startswith("/v1beta/") or GOOGLE_KEY in request.headers:
        return google
    if path.startswith("/v1/models") and "anthropic-version" not in request.headers:
        return openai
    return openai if path.startswith(OPENAI_ENDPOINTS) else anthropic


async def read_body(
    request: web.BaseRequest, limits: GatewayLimitsConfig, budget: RequestBudget | None = None
) -> list[bytes]:
    """Return the body in the pieces in which it came, since one of megabytes costs milliseconds
    to join; raises Refused. ``budget`` counts its bytes while it comes.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise Refused(
            RefusalKind.INVALID,
            f"content-encoding: {encoding!r} is not served: send the body uncompressed",
        )
    check_body_size(request.content_length or 0, limits)
    chunks: list[bytes] = []
    size = 0
    all_there = request.content.is_eof()  # as mostly, and then nothing is waited for
    try:
        async with nullcontext() if all_there else asyncio.timeout(limits.client_s):
            while chunk := await request.content.readany():
                size += len(chunk)
                check_body_size(size, limits)
                if budget is not None:
                    budget.grow(size)
                chunks.append(chunk)
    except TimeoutError:
        raise OverLimit(
            RefusalKind.INVALID, f"the request body did not arrive within {limits.client_s:g} s"
        ) from None
    return chunks


def refuse_for(error: Exception) -> Refused:
    """Return the refusal that answers a request that met an error; unforeseen ones are logged."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, web.RequestPayloadError):
        return Refused(RefusalKind.INVALID, f"the request body cannot be read: {error}")
    if isinstance(error, AgentrlError):
        logger.error("a request failed: %s", error)
        return Refused(RefusalKind.BROKEN, str(error))
    logger.error("a request failed", exc_info=error)
    return Refused(RefusalKind.BROKEN, "the gateway failed on this request; its log says why")


def request_id() -> dict[str, str]:
    """Return the headers that name an answer, Anthropic's and OpenAI's."""
    name = f"req_{secrets.token_hex(12)}"
    return {"request-id": name, "x-request-id": name}


def error_answer(vendor: Vendor, refused: Refused) -> web.Response:
    """Return a refusal in the envelope of an API."""
    status, body = vendor.error_response(refused)
    response = json_answer(body, status)
    if refused.retry_after_s is not None:
        response.headers["retry-after"] = str(refused.retry_after_s)
    return response


def json_answer(body: object, status: int = 200) -> web.Response:
    """Return an answer with a JSON document."""
    return web.Response(
        body=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
        status=status,
        content_type="application/json",
        headers=request_id(),
    )
