"""The client of SGLang's HTTP API, for the embedded engine and a real SGLang server alike.

Invariant: a generation that is given up is aborted at the engine: nothing runs without a caller.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from runners.engines.adapters import load_adapter
from runners.engines.connection import (
    Body,
    Connection,
    EngineClient,
    HttpConnection,
    unreadable_error,
)
from runners.engines.contract import (
    EngineError,
    EngineLoad,
    Generation,
    SamplingParams,
    TokenIds,
    session_id_of,
)
from runners.engines.prompt_json import PromptJson
from runners.records.record import UNKNOWN_VERSION
from runners.system.concurrency import backoff_s

ABORT_DEADLINE_S = 5.0
"""Short, because an abort is only a hint: closing the connection already aborts the request."""

HEALTH_DEADLINE_S = 5.0
LOADS_DEADLINE_S = 10.0
ROUTING_KEY = "X-SMG-Routing-Key"
"""Header by which a router keeps the calls of a session at one worker; a server ignores it."""

UNNUMBERED_VERSION = "default"
"""Weight version that SGLang reports until weights have been updated once."""

UPDATE_PATH = "/update_weights_from_disk"
UPDATE_ATTEMPTS = 3
"""Retrying is safe: the same update twice is the same update."""


class HttpEngine(EngineClient):
    """An ``Engine`` behind ``http://host:port`` or ``unix:/path/to/socket``."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 600.0,
        update_deadline_s: float = 300.0,
        abort: Callable[[str], Coroutine[Any, Any, None]] | None = None,
        connection: Connection | None = None,
        adapter: str | None = None,
        version_offset: int = 0,
    ) -> None:
        """Remember the address; nothing is opened before the first call.

        ``deadline_s`` bounds one generation, queueing included; ``update_deadline_s`` one update of
        the weights, retries included. ``abort`` aborts a request where it runs, if that is not at
        ``url``. ``connection`` replaces the one to ``url``. ``adapter``: the LoRA adapters that
        generations use; updates then load adapters, which must come before the first generation.
        ``version_offset`` is added to the weight versions that it reports.
        """
        super().__init__(url, connection or HttpConnection(url))
        self._abort = abort or self.abort
        self._deadline_s = deadline_s
        self._update_deadline_s = update_deadline_s
        self._adapter = adapter
        self._version_offset = version_offset
        self._aborts: set[asyncio.Task[None]] = set()
        self._prompts = PromptJson()

    def with_connection(self, connection: Connection) -> HttpEngine:
        """Return a client like this one that sends its requests over ``connection``."""
        return HttpEngine(
            self.name,
            deadline_s=self._deadline_s,
            update_deadline_s=self._update_deadline_s,
            abort=self._abort,
            connection=connection,
            adapter=self._adapter,
            version_offset=self._version_offset,
        )

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample a continuation of ``input_ids``; see ``Engine.generate``.

        The ids are those that the logprobs belong to, int32 [m], stop token included; logprobs are
        float32 [m]; routing is int32 [rows · layers · top_k], decoded from base64.
        """
        body: dict[str, Any] = {
            "rid": rid,
            "sampling_params": _sampling_body(params),
            "return_logprob": True,
        }
        if self._adapter is not None:
            body["lora_path"] = self._adapter
        if params.routing_start is not None:
            body["return_routed_experts"] = True
            body["routed_experts_start_len"] = params.routing_start
        began = time.perf_counter()
        try:
            answer = await self.request_json(
                "/generate",
                self._write_body(input_ids, body),
                deadline_s=self._deadline_s,
                headers=routing_key(rid),
            )
        except asyncio.CancelledError:
            self._abort_in_background(rid)
            raise
        except EngineError as error:
            refused = error.pushed_back or error.status in range(400, 500)
            if not refused:  # the reply is lost or late: the request may still run there
                self._abort_in_background(rid)
            raise
        return self._parse_generation(answer, time.perf_counter() - began)

    async def update_weights(self, path: Path, version: int) -> None:
        """Load safetensors weights, or adapters, from a directory; see ``Engine.update_weights``.

        A failure that may pass is retried within the deadline.
        """
        await self._retry_update(path, version)

    async def switch_weights(self, path: Path, version: int) -> None:
        """Load safetensors weights while requests are in flight; raises EngineError.

        The embedded engine loads them beside its requests, which go on meanwhile, also while the
        new weights compute the requests' keys again. It changes between two tokens: what a request
        samples from then on is the new weights' on exactly the prefix that it has; an answer names
        the versions of its tokens (``Generation.weight_spans``).
        """
        await self._retry_update(path, version, in_flight=True)

    async def _retry_update(self, path: Path, version: int, **how: bool) -> None:
        clock = asyncio.get_running_loop().time
        ends, failures = clock() + self._update_deadline_s, 0
        while True:
            try:
                return await self._update_weights(path, version, ends - clock(), **how)
            except EngineError as error:
                failures += 1
                pause = error.retry_after_s + backoff_s(failures)
                out_of_time = clock() + pause >= ends
                if not error.retryable or failures == UPDATE_ATTEMPTS or out_of_time:
                    raise
                await asyncio.sleep(pause)

    async def count_planned_tokens(self) -> dict[int, int]:
        """Return how many tokens of planned requests the embedded engine has sampled, by version of
        their weights; raises EngineError.
        """
        raw = await self.request_bytes("GET", "/server_info", deadline_s=LOADS_DEADLINE_S)
        return {int(key): n for key, n in orjson.loads(raw)["planned_tokens"].items()}

    async def _update_weights(
        self, path: Path, version: int, deadline_s: float, **how: bool
    ) -> None:
        if self._adapter is not None:
            await load_adapter(self, self._adapter, path, version, deadline_s=deadline_s)
            return
        body = {"model_path": str(path), "weight_version": str(version), **how}
        answer = await self.request_json(UPDATE_PATH, body, deadline_s=deadline_s)
        if not answer.get("success"):
            raise EngineError(f"engine {self.name}: {answer.get('message')}", status=400)

    async def loads(self) -> EngineLoad:
        """Return the requests that run and wait, over all data-parallel ranks (``/v1/loads``)."""
        path = "/v1/loads?include=core"
        try:
            raw = await self.request_bytes("GET", path, deadline_s=LOADS_DEADLINE_S)
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
            raise unreadable_error(self.name, "/v1/loads", error) from error

    async def abort(self, rid: str) -> None:
        """Abort a request; never raises: an engine that cannot be reached runs nothing for us."""
        with suppress(EngineError):
            await self.post("/abort_request", {"rid": rid}, deadline_s=ABORT_DEADLINE_S)

    async def abort_all(self) -> None:
        """Abort every request of every client; raises EngineError."""
        await self.post("/abort_request", {"abort_all": True}, deadline_s=ABORT_DEADLINE_S)

    async def post(self, path: str, body: Mapping[str, Any], *, deadline_s: float) -> None:
        """POST ``body`` and ignore the answer's content; raises EngineError."""
        await self.request_bytes("POST", path, orjson.dumps(body), deadline_s=deadline_s)

    async def check_health(self) -> None:
        """Return if it answers; raises EngineError with the reason if not."""
        await self.request_bytes("GET", "/health", deadline_s=HEALTH_DEADLINE_S)

    async def close(self) -> None:
        """Close the client's connections (not the engine), after its last aborts are sent."""
        if self._aborts:
            await asyncio.wait(self._aborts)
        await super().close()

    def _write_body(self, input_ids: TokenIds, members: dict[str, Any]) -> Body:
        """Return the JSON of a request's ids and its other members."""
        if isinstance(input_ids, list):
            return orjson.dumps({"input_ids": input_ids, **members})
        *ids, last = self._prompts.write(input_ids)
        # as few parts as can be: each is written, and wakes the engine, for itself
        return (orjson.dumps(members)[:-1] + b',"input_ids":[', *ids, last + b"]}")

    def _parse_generation(self, answer: dict[str, Any], waited_s: float) -> Generation:
        """Return the generation; ``waited_s`` is its time where the answer does not report one.

        Servers differ in what they report beside ids and logprobs: old ones and routers leave out
        times, weight versions and cache hits, or send null.
        """
        try:
            meta = answer["meta_info"]
            finish = meta["finish_reason"]
            # not ``output_ids``: old servers trim the stop token there, and its logprob stays
            items = meta["output_token_logprobs"]
            reported_s = meta.get("e2e_latency")
            return Generation(
                output_ids=np.asarray([item[1] for item in items], dtype=np.int32),
                logprobs=np.asarray([item[0] for item in items], dtype=np.float32),
                finish_reason=finish["type"],
                matched=finish.get("matched"),
                prompt_tokens=meta["prompt_tokens"],
                cached_tokens=meta.get("cached_tokens") or 0,
                weight_version=self._count_version(meta.get("weight_version")),
                weight_spans=tuple(
                    (self._count_version(version), count)
                    for version, count in _read_spans(meta.get("weight_versions"))
                ),
                engine_s=waited_s if reported_s is None else float(reported_s),
                routing=_decode_routing(meta.get("routed_experts")),
                queue_s=float(meta.get("queue_time") or 0.0),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise unreadable_error(self.name, "/generate", error) from error

    def _count_version(self, reported: object) -> int:
        """Return a weight version as the run counts it."""
        version = _read_version(reported)
        return version if version == UNKNOWN_VERSION else version + self._version_offset

    def _abort_in_background(self, rid: str) -> None:
        """Start an abort: a caller that was cancelled must not wait for it."""
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
        # ids must be exactly what was sampled: nothing trimmed, skipped or inserted
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


def _read_version(reported: object) -> int:
    """Return a weight version as a number; ``UNKNOWN_VERSION`` if none is reported.

    A server whose weights come from elsewhere may name them ("step-12", a hash).
    """
    if reported == UNNUMBERED_VERSION:
        return 0
    text = str(reported)
    return int(text) if text.isascii() and text.isdigit() else UNKNOWN_VERSION


def _read_spans(reported: list[dict[str, Any]] | None) -> tuple[tuple[int, int], ...]:
    """Return the spans of SGLang's ``weight_versions``, ``[{version, start, end}, …]``; none if the
    server has not switched its weights during the request, or is too old to report them.
    """
    if reported is None or len(reported) < 2:
        return ()
    ends = [0, *(int(span["end"]) for span in reported)]
    if [int(span["start"]) for span in reported] != ends[:-1]:
        raise ValueError(f"weight_versions have gaps: {reported}")
    return tuple(
        (_read_version(span["version"]), end - start)
        for span, start, end in zip(reported, ends, ends[1:], strict=False)
    )


def _decode_routing(encoded: str | None) -> NDArray[np.int32] | None:
    """Decode SGLang's ``routed_experts``: base64 of little-endian int32, flat, without a shape."""
    if encoded is None:
        return None
    return np.frombuffer(base64.b64decode(encoded, validate=True), "<i4")
