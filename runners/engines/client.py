"""The client of SGLang's HTTP API, for the embedded engine and for a real SGLang server alike."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from runners.concurrency.limits import backoff_s
from runners.engines.contract import (
    EngineError,
    EngineLoad,
    Generation,
    SamplingParams,
    session_id_of,
)

ABORT_DEADLINE_S = 5.0
"""An abort is a courtesy: the closed connection already is one."""

HEALTH_DEADLINE_S = 5.0
ROUTING_KEY = "X-SMG-Routing-Key"
"""By it a router keeps the calls of a session at one worker; a server takes no notice."""

UNNUMBERED_VERSION = "default"
"""What SGLang reports until weights have been updated once."""

LOADS_DEADLINE_S = 10.0
UPDATE_ATTEMPTS = 3
"""An update that is done twice is the same update."""

RETRYABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504})
PUSHED_BACK_STATUS = frozenset({429, 503})
_DROPPED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)


class HttpEngine:
    """An ``Engine`` behind ``http://host:port`` or ``unix:/path/to/socket``."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 600.0,
        update_deadline_s: float = 300.0,
        abort: Callable[[str], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Remember the address; nothing is opened before the first call.

        ``deadline_s`` bounds one generation, queueing included; ``update_deadline_s`` one change of
        weights. ``abort``: aborts a request where it runs, if that is not at ``url``.
        """
        self._abort = abort or self.abort
        self._socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._url = "http://engine" if self._socket else url.rstrip("/")
        self.name = url
        """What it is called in errors: its address."""
        self._deadline_s = deadline_s
        self._update_deadline_s = update_deadline_s
        self._session: aiohttp.ClientSession | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample a continuation; raises EngineError. Cancelling the call aborts the request at the
        engine.
        """
        body = {
            "rid": rid,
            "input_ids": input_ids,
            "sampling_params": _sampling_body(params),
            "return_logprob": True,
        }
        if params.routing_start is not None:
            body["return_routed_experts"] = True
            body["routed_experts_start_len"] = params.routing_start
        try:
            key = routing_key(rid)
            answer = await self._post("/generate", body, self._deadline_s, headers=key)
        except asyncio.CancelledError:
            self._abort_soon(rid)
            raise
        except EngineError as error:
            refused = error.pushed_back or error.status in range(400, 500)
            if not refused:  # perhaps it still runs there
                self._abort_soon(rid)
            raise
        return self._generation(answer)

    async def update_weights(self, path: Path, version: int) -> None:
        """Load safetensors weights from a directory, flush the cache, and report ``version`` from
        then on; a failure that may pass is tried again.
        """
        body = {"model_path": str(path), "weight_version": str(version)}
        clock = asyncio.get_running_loop().time
        ends, tries = clock() + self._update_deadline_s, 0
        while True:
            try:
                answer = await self._post("/update_weights_from_disk", body, ends - clock())
                break
            except EngineError as error:
                tries += 1
                pause = error.retry_after_s + backoff_s(tries)
                if not error.retryable or tries == UPDATE_ATTEMPTS or clock() + pause >= ends:
                    raise
                await asyncio.sleep(pause)
        if not answer.get("success"):
            raise EngineError(f"engine {self.name}: {answer.get('message')}", status=400)

    async def loads(self) -> EngineLoad:
        """Return what it has to do (``/v1/loads``)."""
        try:
            raw = await self._request("GET", "/v1/loads?include=core", None, LOADS_DEADLINE_S)
        except EngineError as error:
            if error.status != 404:
                raise
            raise EngineError(
                f"engine {self.name} has no /v1/loads, as no router has: list the servers behind "
                "it in engine.workers",
                status=404,
            ) from error
        try:
            rows = orjson.loads(raw)["loads"]
            return EngineLoad(
                running=sum(int(row["num_running_reqs"]) for row in rows),
                waiting=sum(int(row["num_waiting_reqs"]) for row in rows),
            )
        except (KeyError, TypeError, ValueError) as error:
            self._refuse("/v1/loads", error)

    async def abort(self, rid: str) -> None:
        """Abort a request; never raises: an engine that cannot be told anything runs nothing for
        us.
        """
        with suppress(EngineError):
            await self.post("/abort_request", {"rid": rid}, deadline_s=ABORT_DEADLINE_S)

    async def abort_all(self) -> None:
        """Abort every request, whoever made it."""
        await self.post("/abort_request", {"abort_all": True}, deadline_s=ABORT_DEADLINE_S)

    async def post(self, path: str, body: Mapping[str, Any], *, deadline_s: float) -> None:
        """POST ``body``, whatever is answered; raises EngineError."""
        await self._request("POST", path, orjson.dumps(body), deadline_s)

    async def request_json(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that answers a POST of ``body``, or a GET without one; raises
        EngineError.
        """
        if body is not None:
            return await self._post(path, body, deadline_s, headers)
        return self._object(path, await self._request("GET", path, None, deadline_s))

    async def healthy(self) -> bool:
        """Whether it answers."""
        try:
            await self.check_health()
        except EngineError:
            return False
        return True

    async def check_health(self) -> None:
        """Return if it answers; raises EngineError with what is wrong."""
        await self._request("GET", "/health", None, HEALTH_DEADLINE_S)

    async def close(self) -> None:
        """Close the client's connections (not the engine)."""
        if self._aborts:
            await asyncio.wait(self._aborts)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        raw = await self._request("POST", path, orjson.dumps(body), deadline_s, headers)
        return self._object(path, raw)

    def _object(self, path: str, raw: bytes) -> dict[str, Any]:
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            self._refuse(path, error)
        if not isinstance(answer, dict):
            self._refuse(path, TypeError("not a JSON object"))
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        if self._session is None:
            self._session = self._open()
        headers = {"Content-Type": "application/json", **(headers or {})}
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.request(
                    method, self._url + path, data=body, headers=headers
                ) as response,
            ):
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._refuse(path, error, deadline_s=deadline_s)
        if response.status != 200:
            self._refuse(path, None, response.status, raw, headers=response.headers)
        return raw

    def _open(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._socket:
            connector = aiohttp.UnixConnector(self._socket, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0)
        # deadlines are per call; proxies of the environment are for the outside world, not for an
        # engine
        return aiohttp.ClientSession(
            connector=connector, trust_env=False, timeout=aiohttp.ClientTimeout(total=None)
        )

    def _refuse(
        self,
        path: str,
        cause: Exception | None,
        status: int | None = None,
        raw: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float = 0.0,
    ) -> NoReturn:
        """Turn whatever went wrong into EngineError: the one place that reads statuses and
        exceptions.
        """
        what = f"engine {self.name} {path}: "
        if status is not None:
            raise EngineError(
                f"{what}HTTP {status}: {_error_text(raw)}",
                status=status,
                retryable=status in RETRYABLE_STATUS,
                pushed_back=status in PUSHED_BACK_STATUS,
                retry_after_s=_retry_after_s(headers or {}),
            ) from cause
        if isinstance(cause, TimeoutError):
            raise EngineError(f"{what}no answer within {deadline_s:g} s", retryable=True) from cause
        if isinstance(cause, aiohttp.ClientError | OSError):
            raise EngineError(
                f"{what}unreachable: {str(cause) or type(cause).__name__}",
                retryable=True,
                dropped=isinstance(cause, _DROPPED)
                and not isinstance(cause, aiohttp.ClientConnectorError),
                unreachable=isinstance(cause, aiohttp.ClientConnectorError),
            ) from cause
        raise EngineError(f"{what}unreadable answer: {cause}", status=200) from cause

    def _generation(self, answer: dict[str, Any]) -> Generation:
        try:
            meta = answer["meta_info"]
            finish = meta["finish_reason"]
            # the ids that the logprobs belong to, whatever was trimmed from ``output_ids``
            items = meta["output_token_logprobs"]
            version = meta.get("weight_version")
            return Generation(
                output_ids=np.asarray([item[1] for item in items], dtype=np.int32),
                logprobs=np.asarray([item[0] for item in items], dtype=np.float32),
                finish_reason=finish["type"],
                matched=finish.get("matched"),
                prompt_tokens=meta["prompt_tokens"],
                cached_tokens=meta["cached_tokens"],
                weight_version=0 if version in (None, UNNUMBERED_VERSION) else int(version),
                engine_s=float(meta["e2e_latency"]),
                routing=_routing(meta.get("routed_experts")),
                queue_s=float(meta.get("queue_time") or 0.0),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._refuse("/generate", error)

    def _abort_soon(self, rid: str) -> None:
        """Abort in the background: the caller that was cancelled must not wait for it."""
        task = asyncio.create_task(self._abort(rid), name=f"abort-{rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)


def routing_key(rid: str) -> dict[str, str]:
    """Return the header by which a router keeps the calls of a session together."""
    return {ROUTING_KEY: session_id_of(rid)}


def _sampling_body(params: SamplingParams) -> dict[str, Any]:
    body: dict[str, Any] = {
        "max_new_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if params.stop:
        body["stop"] = list(params.stop)
    if params.stop_token_ids:
        body["stop_token_ids"] = list(params.stop_token_ids)
    if params.sampling_seed is not None:
        body["sampling_seed"] = params.sampling_seed
    return body


def _routing(encoded: str | None) -> NDArray[np.int32] | None:
    """Decode SGLang's ``routed_experts``: base64 of little-endian int32, without a shape."""
    if encoded is None:
        return None
    return np.frombuffer(base64.b64decode(encoded, validate=True), "<i4")


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return what ``Retry-After`` asks for, in seconds or as a date (RFC 9110, 10.2.3); else 0."""
    asked = headers.get("Retry-After", "").strip()
    if asked.isascii() and asked.isdigit():
        return float(asked)
    try:
        until = parsedate_to_datetime(asked)
    except ValueError:
        return 0.0
    return max(0.0, (until.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def _error_text(raw: bytes) -> str:
    """Find the message of an error body.

    SGLang's ``{"error": {"message"}}``, FastAPI's ``{"detail"}``, ``{"message"}``, or plain text.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace").strip()[:500]
    if isinstance(body, dict):
        error = body.get("error")
        if isinstance(error, dict) and "message" in error:
            return str(error["message"])
        for key in ("message", "detail"):
            if key in body:
                return str(body[key])
    return str(body)[:500]
