"""The engine's five wires, as SGLang 0.5 and vLLM 0.11 to 0.20 speak them.

SGLang ``/generate`` and ``/v1/chat/completions`` with ``input_ids`` and ``return_meta_info``; vLLM
``/v1/chat/completions`` and ``/v1/completions`` with ``return_token_ids``, and its
``/inference/v1/generate``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from agentrl.referee.conversation import RefereeError, Sampling
from agentrl.referee.policy import CueEngine, Vocabulary

MODEL = "policy"
CONTEXT = 1_000_000
ABOUT: Mapping[str, Any] = {
    **{"context_length": CONTEXT, "model_path": MODEL, "is_generation": True},
    **{"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": CONTEXT}]},
    **{"version": "0.20.0", "weight_version": "1", "max_model_len": CONTEXT},
    "loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0}],
}
"""Answer to all that gateways ask before they trust an engine, whatever the path."""


class WireServer:
    """Serves one engine on all wires."""

    def __init__(self, engine: CueEngine) -> None:
        self.engine = engine
        self.app = web.Application(client_max_size=256 * 2**20)
        self.app.router.add_routes([web.post(path, self._answer) for path in WRITERS])
        self.app.router.add_route("*", "/{path:.*}", self._describe)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body: dict[str, Any] = await request.json()
            prompt = read_prompt(body, self.engine.vocabulary)
            limit = _read_limit(body)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            return _error(400, f"{type(error).__name__}: {error}")
        tells_version = request.path == "/generate" or bool(body.get("return_meta_info"))
        sampling = await self.engine.sample(prompt, limit, tells_version=tells_version)
        match sampling.answer.fault:
            case "drop":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case "garbage":
                return web.Response(text="<html>upstream error</html>")
            case fault if fault.isdigit():
                return _error(int(fault), "a fault that the scenario wants")
        answer = WireAnswer(body, sampling, len(sampling.output), self.engine.vocabulary)
        try:
            if body.get("stream"):
                return await _stream(request, answer)
            return web.json_response(WRITERS[request.path](answer))
        except (asyncio.CancelledError, ConnectionError):
            self.engine.mark_cut(sampling)
            raise

    async def _describe(self, request: web.Request) -> web.Response:
        if request.path in ("/tokenize", "/v1/tokenize"):
            ids = self.engine.vocabulary.encode(str((await request.json()).get("prompt", "")))
            return web.json_response({"tokens": ids, "count": len(ids), **ABOUT})
        if request.method == "GET" or request.path in ("/abort_request", "/flush_cache"):
            return web.json_response(ABOUT)
        return _error(404, f"the referee's engine has no {request.path}")


@asynccontextmanager
async def serve_engine(engine: CueEngine, port: int = 0) -> AsyncIterator[str]:
    """Serve the engine in this loop, and yield its URL; raises RefereeError."""
    # without handler_cancellation a gateway that leaves would go unnoticed
    app = WireServer(engine).app
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            raise RefereeError(f"--port {port}: {error.strerror or error}") from error
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def read_prompt(body: Mapping[str, Any], vocabulary: Vocabulary) -> Sequence[int]:
    """Return the tokens that a request on any wire asks to continue; raises ValueError."""
    keys = ("input_ids", "token_ids", "prompt", "text")
    key = next((key for key in keys if body.get(key) is not None), "")
    found = body.get(key)
    if not key and "messages" in body:
        return vocabulary.render(body["messages"], body.get("tools"))
    if isinstance(found, list) and len(found) == 1 and not isinstance(found[0], int):
        found = found[0]
    if isinstance(found, str) and key in ("prompt", "text"):
        return vocabulary.encode(found)
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise ValueError(f"one of {', '.join(keys)} has to be a list of tokens, or a text")
    return found


def _read_limit(body: Mapping[str, Any]) -> int | None:
    places = (body.get("sampling_params") or {}, body)
    names = ("max_new_tokens", "max_completion_tokens", "max_tokens")
    limits = (place[name] for place in places for name in names if place.get(name) is not None)
    return next((limit for limit in limits if isinstance(limit, int)), None)


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """Answer to a request, up to a token."""

    body: Mapping[str, Any]
    """The request: it says which tokens, logprobs and other things it wants."""
    sampling: Sampling
    end: int
    vocabulary: Vocabulary

    def write_sglang(self) -> dict[str, Any]:
        """Return an answer of SGLang's ``/generate``."""
        output = self.sampling.output[: self.end]
        return {
            "text": self.vocabulary.decode(output),
            "output_ids": output,
            "meta_info": self._write_meta(),
        }

    def write_chat(self) -> dict[str, Any]:
        """Return an answer of a chat wire; with SGLang's ``meta_info`` if it is asked for."""
        answer, finish = self.sampling.answer, self.sampling.finish
        message: dict[str, Any] = {"role": "assistant", "content": self.vocabulary.write(answer)}
        if answer.is_exact:
            message |= {"content": answer.text, "reasoning_content": answer.thought or None}
            message["tool_calls"] = [
                {
                    "id": f"call_{self.sampling.index}_{at}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for at, call in enumerate(answer.calls)
            ] or None
            finish = "tool_calls" if answer.calls else finish
        meta = {"meta_info": self._write_meta()} if self.body.get("return_meta_info") else {}
        wants_ids = self.body.get("return_token_ids")
        prompt = {"prompt_token_ids": self.sampling.prompt} if wants_ids else {}
        choice = {"message": message, "finish_reason": finish, **meta}
        return self._wrap("chat.completion", choice) | prompt

    def write_completion(self) -> dict[str, Any]:
        """Return an answer of vLLM's ``/v1/completions``, whose logprobs are columns."""
        output, wants_ids = self.sampling.output, self.body.get("return_token_ids")
        columns = {
            "tokens": [self.vocabulary.decode([token]) for token in output],
            "token_logprobs": self.sampling.logprobs,
            "top_logprobs": None,
            "text_offset": [],
        }
        choice = {"text": self.vocabulary.decode(output), "finish_reason": self.sampling.finish}
        prompt = {"prompt_token_ids": self.sampling.prompt} if wants_ids else {}
        answered = self._wrap("text_completion", {**choice, **prompt})
        if self.body.get("logprobs") is not None:
            answered["choices"][0]["logprobs"] = columns
        return answered

    def write_tokens(self) -> dict[str, Any]:
        """Return an answer of vLLM's ``/inference/v1/generate``."""
        wanted = (self.body.get("sampling_params") or {}).get("logprobs") is not None
        choice: dict[str, Any] = {"index": 0, "token_ids": self.sampling.output}
        choice["finish_reason"] = self.sampling.finish
        choice["logprobs"] = self._write_logprobs(as_ids=True) if wanted else None
        request_id = self.body.get("request_id") or f"r{self.sampling.index}"
        return {"request_id": request_id, "choices": [choice], "prompt_logprobs": None}

    def _write_meta(self) -> dict[str, Any]:
        sampling, end = self.sampling, self.end
        reason: dict[str, Any] = {"type": sampling.finish}
        if sampling.finish == "stop":
            reason["matched"] = sampling.output[-1] if sampling.output else None
        if sampling.finish == "length":
            reason["length"] = len(sampling.output)
        if sampling.finish == "abort":
            reason |= {"message": "Abort", "status_code": None, "err_type": None}
        rows = zip(sampling.logprobs[:end], sampling.output[:end], strict=True)
        return {
            "id": self.body.get("rid") or f"r{sampling.index}",
            "finish_reason": reason if end == len(sampling.output) else None,
            "prompt_tokens": len(sampling.prompt),
            "completion_tokens": end,
            "cached_tokens": 0,
            "weight_version": str(sampling.version),
            "e2e_latency": 0.01,
            "output_token_logprobs": [[value, token, None] for value, token in rows],
        }

    def _write_logprobs(self, *, as_ids: bool) -> dict[str, Any]:
        pairs = zip(self.sampling.output, self.sampling.logprobs, strict=True)
        rows = [
            (f"token_id:{token}" if as_ids else self.vocabulary.decode([token]), value)
            for token, value in pairs
        ]
        none: dict[str, Any] = {"bytes": None, "top_logprobs": []}
        return {"content": [{"token": name, "logprob": value, **none} for name, value in rows]}

    def _wrap(self, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
        sampling, as_ids = self.sampling, bool(self.body.get("return_tokens_as_token_ids"))
        ids = {"token_ids": sampling.output} if self.body.get("return_token_ids") else {}
        logprobs = self._write_logprobs(as_ids=as_ids) if self.body.get("logprobs") else None
        used = {"prompt_tokens": len(sampling.prompt), "completion_tokens": len(sampling.output)}
        return {
            "id": f"r{sampling.index}",
            "object": kind,
            "created": 1_760_000_000,
            "model": MODEL,
            "choices": [{"index": 0, "logprobs": logprobs, **choice, **ids}],
            "usage": {**used, "total_tokens": sum(used.values())},
        }


async def _stream(request: web.Request, answer: WireAnswer) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    # cumulative on SGLang's own wire; elsewhere one piece is a whole answer, too
    ends = [answer.end // 2] if request.path == "/generate" else []
    for end in [*ends, answer.end]:
        chunk = WRITERS[request.path](replace(answer, end=end))
        for choice in chunk.get("choices", ()):
            if "message" in choice:
                chunk["object"] = "chat.completion.chunk"
                choice["delta"] = choice.pop("message")
                for at, call in enumerate(choice["delta"].get("tool_calls") or ()):
                    call["index"] = at
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "referee", "param": None, "code": status}
    return web.json_response({"error": error, "object": "error", "message": message}, status=status)


WRITERS: Mapping[str, Callable[[WireAnswer], dict[str, Any]]] = {
    "/generate": WireAnswer.write_sglang,
    "/v1/chat/completions": WireAnswer.write_chat,
    "/v1/completions": WireAnswer.write_completion,
    "/inference/v1/generate": WireAnswer.write_tokens,
}
"""By paths; SGLang's and vLLM's chat share one."""
