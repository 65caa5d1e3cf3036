"""A loopback server that speaks SGLang's HTTP API and says what a test tells it to say.

It keeps the wire of a real engine: 3-tuples in ``output_token_logprobs``, ``meta_info`` with string
weight versions, ``length`` when ``max_new_tokens`` cuts an answer, aborts by ``/abort_request`` and
by disconnecting, SGLang's errors.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import orjson
from aiohttp import web
from numpy.typing import NDArray
from tokenizers import Tokenizer

from runners.trajectory.routing import RoutingShape
from tests.fakes.tiny_tokenizer import tiny_tokenizer

END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Completion:
    """One scripted answer of ``/generate``."""

    text: str = ""
    """What is sampled, special tokens written out."""
    finish: str = "stop"
    """stop | length | abort"""
    stop_string: str | None = None
    """Reported as what the engine stopped at, instead of the last token."""
    delay_s: float = 0.0
    status: int = 200
    """Another one answers with SGLang's error body."""
    raw: bytes | None = None
    """Answered instead of everything else."""
    routing: str = "sent"
    """``sent``: what is asked for; ``none``: dropped, as a router does; ``short``: a row too few;
    ``whole``: from position 0, whatever was asked for.
    """
    weight_version: str | None = None
    """The engine's from this answer on; None: as before."""


@dataclass(slots=True)
class Seen:
    """What the engine was asked; filled by the server."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    answered: list[tuple[list[int], list[float]]] = field(default_factory=list)
    """Ids and logprobs sent, per successful request."""
    aborted: list[str] = field(default_factory=list)
    """Request ids whose client left or that were aborted."""


def routed(shape: RoutingShape, tokens: Iterable[int], version: int) -> NDArray[np.int32]:
    """Return what weights of a version choose for tokens at their positions, [T, layers, top_k]:
    distinct experts that a shift by a token or by a layer, or another version, changes; zeros in
    dense layers.
    """
    ids = np.fromiter(tokens, np.int64)
    first = 5 * ids + 3 * np.arange(len(ids)) + 11 * version
    layers, slots = np.arange(shape.layers), np.arange(shape.top_k)
    experts = (first[:, None, None] + 7 * layers[:, None] + slots) % shape.experts
    experts[:, [layer for layer in layers if layer not in shape.routed]] = 0
    return experts.astype(np.int32)


def spoken(content: Iterable[Mapping[str, Any]], *, thinking: str | None = None) -> str:
    """Write an Anthropic answer as a Qwen3 policy would sample it."""
    text = "" if thinking is None else f"<think>\n{thinking}\n</think>\n\n"
    for block in content:
        if block["type"] == "text":
            text += block["text"]
        else:
            call = {"name": block["name"], "arguments": block["input"]}
            break_line = "\n" if text and not text.endswith("\n") else ""
            text += f"{break_line}<tool_call>\n{orjson.dumps(call).decode()}\n</tool_call>"
    return text + END


class ScriptedEngine:
    """An async context manager; ``url`` is where it listens."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer = tokenizer or tiny_tokenizer()
        self.script: deque[Completion] = deque()
        """Answers to come; an empty script answers 500."""
        self.always: Completion | None = None
        """Answers every request once the script is empty."""
        self.weight_version = "1"
        self.shape: RoutingShape | None = None
        """What its routing looks like; None: it was started without
        ``--enable-return-routed-experts``.
        """
        self.seen = Seen()
        self.url = ""
        self.arrived = asyncio.Event()
        """Set when a request arrives; a test clears it."""
        self._running: dict[str, asyncio.Event] = {}
        self._runner: web.ServerRunner | None = None

    def say(self, *completions: Completion | str) -> Self:
        """Add answers to the script."""
        self.script += [Completion(c) if isinstance(c, str) else c for c in completions]
        return self

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(
            web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        for event in self._running.values():
            event.set()
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path in ("/health", "/health_generate"):
            return web.Response()
        if request.path == "/abort_request":
            rid = orjson.loads(await request.read())["rid"]
            if rid in self._running:
                self._running[rid].set()
            self.seen.aborted.append(rid)
            return web.Response()
        if request.path == "/update_weights_from_disk":
            self.weight_version = orjson.loads(await request.read())["weight_version"]
            answer = {"success": True, "message": "", "num_paused_requests": 0}
            return web.Response(body=orjson.dumps(answer), content_type="application/json")
        if request.path != "/generate":
            return web.Response(status=404)
        return await self._generate(orjson.loads(await request.read()))

    async def _generate(self, body: dict[str, Any]) -> web.StreamResponse:
        _check(body)
        self.seen.requests.append(body)
        self.arrived.set()
        completion = self.script.popleft() if self.script else self.always
        if completion is None:
            return _error(500, "the script is at its end")
        cut = asyncio.Event()
        self._running[body["rid"]] = cut
        try:
            async with asyncio.timeout(completion.delay_s):
                await cut.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.seen.aborted.append(body["rid"])
            raise
        finally:
            del self._running[body["rid"]]
        if completion.raw is not None:
            return web.Response(body=completion.raw, content_type="application/json")
        if completion.status != 200:
            return _error(completion.status, "scripted fault")
        return web.Response(
            body=orjson.dumps(self._answer(body, completion, aborted=cut.is_set())),
            content_type="application/json",
        )

    def _answer(
        self, body: dict[str, Any], completion: Completion, *, aborted: bool
    ) -> dict[str, Any]:
        ids = self.tokenizer.encode(completion.text, add_special_tokens=False).ids
        self.weight_version = completion.weight_version or self.weight_version
        limit = body["sampling_params"]["max_new_tokens"]
        finish: dict[str, Any] = {"type": completion.finish}
        if completion.finish == "stop":
            finish["matched"] = completion.stop_string or (ids[-1] if ids else None)
        if len(ids) > limit or completion.finish == "length":
            ids = ids[:limit]
            finish = {"type": "length", "length": len(ids)}
        if aborted:
            finish = {"type": "abort", "message": "Abort", "status_code": None, "err_type": None}
        logprobs = [-((7 * token + place) % 64 + 1) / 64 for place, token in enumerate(ids)]
        self.seen.answered.append((ids, logprobs))
        prompt = len(body["input_ids"])
        encoded = self._routing(body, ids, completion)
        return {
            "text": self.tokenizer.decode(ids, skip_special_tokens=False),
            "output_ids": ids,
            "meta_info": {
                "id": body["rid"],
                "finish_reason": finish,
                "prompt_tokens": prompt,
                "completion_tokens": len(ids),
                "cached_tokens": prompt // 2,
                "weight_version": self.weight_version,
                "e2e_latency": completion.delay_s,
                "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
                **({} if encoded is None else {"routed_experts": encoded}),
            },
        }

    def _routing(self, body: dict[str, Any], ids: list[int], completion: Completion) -> str | None:
        """Return the rows of all tokens but the last, from the first that is asked for."""
        if self.shape is None or not body.get("return_routed_experts"):
            return None
        tokens = [*body["input_ids"], *ids]
        rows = routed(self.shape, tokens, int(self.weight_version))[:-1]
        start = 0 if completion.routing == "whole" else body["routed_experts_start_len"]
        end = len(rows) - 1 if completion.routing == "short" else len(rows)
        if completion.routing == "none":
            return None
        return base64.b64encode(rows[start:end].astype("<i4").tobytes()).decode()


def _check(body: dict[str, Any]) -> None:
    """Refuse what SGLang would refuse or answer differently."""
    asked = {"rid", "input_ids", "sampling_params", "return_logprob", "stream"}
    assert set(body) <= asked | {"return_routed_experts", "routed_experts_start_len"}, body
    assert 0 <= body.get("routed_experts_start_len", 0) <= len(body["input_ids"])
    assert body["return_logprob"] is True
    assert body["input_ids"]
    assert all(type(token) is int for token in body["input_ids"])
    assert body["sampling_params"]["max_new_tokens"] >= 1


def _error(status: int, message: str) -> web.Response:
    return web.Response(
        status=status,
        body=orjson.dumps({"error": {"message": message}}),
        content_type="application/json",
    )
