"""A fake vLLM server that gives the answers a test scripts.

It honours the wire of ``vllm/entrypoints/openai/completion`` (vLLM's repository, commit 002032ee,
2026): defaults of the request, ``token_ids`` and ``prompt_token_ids`` only where
``return_token_ids`` asks for them, logprobs beside them, ``stop_reason`` null for the
end-of-sequence token, error bodies, and aborts by disconnecting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson
from aiohttp import web
from tokenizers import Tokenizer

from agentrl.testing.loopback_server import LoopbackServer
from runners.records.tokenizer import tiny_tokenizer

MODEL = "served/model"
KNOWN = {
    *("model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "stop_token_ids", "logprobs"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"),
    *("return_token_ids", "request_id"),
}


@dataclass(frozen=True, slots=True)
class VllmAnswer:
    """One scripted answer of ``/v1/completions``."""

    text: str = "ok<|im_end|>"
    """The sampled text, special tokens written out."""
    finish: str = "stop"
    stop_reason: int | str | None = None
    delay_s: float = 0.0
    status: int = 200
    message: str = "scripted fault"
    headers: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the choice that differ from what vLLM sends."""


class VllmServer(LoopbackServer):
    """A fake vLLM server."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer = tokenizer or tiny_tokenizer()
        self.script: deque[VllmAnswer] = deque()
        """The next answers; with an empty script the answer is the default one."""
        self.models: list[str] = [MODEL]
        self.max_model_len = 40960
        self.logprobs_mode = "raw_logprobs"
        self.returns_token_ids = True
        """False: an earlier version than 0.10.2, which ignores the field."""
        self.prompt_details = False
        """Started with ``--enable-prompt-tokens-details``."""
        self.api_key: str | None = None
        self.requests: list[dict[str, Any]] = []
        """Bodies of ``/v1/completions``."""
        self.paths: list[str] = []
        self.aborted: list[str] = []
        """Request ids whose client disconnected."""
        self.arrived = asyncio.Event()

    def say(self, *answers: VllmAnswer | str) -> Self:
        """Add answers to the script."""
        self.script += [VllmAnswer(a) if isinstance(a, str) else a for a in answers]
        return self

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.paths.append(request.path)
        keyed = request.path.startswith("/v1") and self.api_key is not None
        if keyed and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return _json({"error": "Unauthorized"}, 401)
        match request.path:
            case "/health":
                return web.Response()
            case "/v1/models":
                cards = [
                    {"id": name, "object": "model", "max_model_len": self.max_model_len}
                    for name in self.models
                ]
                return _json({"object": "list", "data": cards})
            case "/v1/completions":
                return await self._complete(orjson.loads(await request.read()))
        return _json({"detail": "Not Found"}, 404)

    async def _complete(self, body: dict[str, Any]) -> web.Response:
        assert set(body) <= KNOWN, set(body) - KNOWN
        self.requests.append(body)
        if body["model"] not in self.models:
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        if len(body["prompt"]) + body["max_tokens"] > self.max_model_len:
            return _error(400, "This model's maximum context length is exceeded.")
        answer = self.script.popleft() if self.script else VllmAnswer()
        self.arrived.set()
        try:
            await asyncio.sleep(answer.delay_s)
        except asyncio.CancelledError:
            self.aborted.append(body["request_id"])
            raise
        if answer.status != 200:
            return _error(answer.status, answer.message, headers=answer.headers)
        return _json(self._answer(body, answer))

    def _answer(self, body: dict[str, Any], answer: VllmAnswer) -> dict[str, Any]:
        ids = self.tokenizer.encode(answer.text, add_special_tokens=False).ids
        finish = answer.finish
        if len(ids) > body["max_tokens"]:
            ids, finish = ids[: body["max_tokens"]], "length"
        tokens = [self.tokenizer.decode([token], skip_special_tokens=False) for token in ids]
        logprobs = [self._logprob(body, place, token) for place, token in enumerate(ids)]
        returned = body.get("return_token_ids") and self.returns_token_ids
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(tokens),
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": answer.stop_reason,
            "token_ids": ids if returned else None,
            "prompt_logprobs": None,
            "prompt_token_ids": body["prompt"] if returned else None,
        }
        if body.get("logprobs") is not None:
            pairs = zip(tokens, logprobs, strict=True)
            choice["logprobs"] = {
                "text_offset": [len("".join(tokens[:place])) for place in range(len(tokens))],
                "token_logprobs": logprobs,
                "tokens": tokens,
                "top_logprobs": [{token: value} for token, value in pairs],
            }
        prompt = len(body["prompt"])
        details = {"cached_tokens": prompt // 2} if self.prompt_details else None
        return {
            "id": f"cmpl-{body['request_id']}",
            "object": "text_completion",
            "created": 1_760_000_000,
            "model": body["model"],
            "choices": [choice | dict(answer.changes)],
            "usage": {
                "prompt_tokens": prompt,
                "total_tokens": prompt + len(ids),
                "completion_tokens": len(ids),
                "prompt_tokens_details": details,
            },
        }

    def _logprob(self, body: dict[str, Any], place: int, token: int) -> float:
        raw = ((7 * token + place) % 64 + 1) / 64
        if self.logprobs_mode == "raw_logits":
            return raw
        certain = self.logprobs_mode == "processed_logprobs" and body["top_k"] == 1
        return 0.0 if certain else -raw


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(value),
        status=status,
        headers={"content-type": "application/json", **(headers or {})},
    )


def _error(
    status: int,
    message: str,
    kind: str = "BadRequestError",
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return _json({"error": error}, status, headers)
