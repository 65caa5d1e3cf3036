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
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from agentrl.referee.conversation import PolicyAnswer, RefereeError, Sampling
from agentrl.referee.engine import CueEngine

MODEL = "policy"
CONTEXT = 1_000_000
BODY_BYTES = 256 * 2**20
DONE = ("/", "/ping", "/health", "/health_generate", "/abort_request", "/flush_cache")
CONTROLS = ("script", "wait", "release", "set_version", "list_samplings", "describe")


class BadBody(Exception):
    """A request of which the engine cannot make tokens."""


class WireServer:
    """Serves one engine on all wires, and the calls by which a referee scripts it."""

    def __init__(self, engine: CueEngine) -> None:
        self.engine = engine
        self._vocabulary = engine.vocabulary
        self.app = web.Application(client_max_size=BODY_BYTES)
        route = self.app.router.add_post
        route("/generate", self._answer(self._sglang_prompt, self._sglang, versioned=True))
        route("/v1/chat/completions", self._answer(self._chat_prompt, self._chat))
        route("/v1/completions", self._answer(self._completion_prompt, self._completion))
        route("/inference/v1/generate", self._answer(lambda b: _ids(b, "token_ids"), self._tokens))
        route("/referee/{name}", self._control)
        self.app.router.add_route("*", "/{path:.*}", self._describe)

    # --- one answer -----------------------------------------------------------------------------

    def _answer(
        self,
        read: Callable[[dict[str, Any]], Sequence[int]],
        write: Callable[[dict[str, Any], Sampling, int], dict[str, Any]],
        *,
        versioned: bool = False,
    ) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            body: Any = {}
            try:
                body = await request.json()
                prompt = read(body)
            except (BadBody, AttributeError, LookupError, TypeError, ValueError) as error:
                return _error(400, f"{type(error).__name__}: {error}")
            sampling = await self.engine.sample(
                prompt,
                _limit(body),
                tells_version=versioned or bool(body.get("return_meta_info")),
            )
            match sampling.answer.fault:
                case "drop":
                    assert request.transport is not None
                    request.transport.abort()
                    return web.Response()
                case "garbage":
                    return web.Response(text="<html>upstream error</html>")
                case fault if fault.isdigit():
                    return _error(int(fault), "a fault that the scenario wants")
            try:
                if not body.get("stream"):
                    return web.json_response(write(body, sampling, len(sampling.output)))
                return await self._stream(request, body, sampling, write)
            except (asyncio.CancelledError, ConnectionError):
                self.engine.mark_cut(sampling)
                raise

        return handle

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        sampling: Sampling,
        write: Callable[[dict[str, Any], Sampling, int], dict[str, Any]],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        # cumulative on SGLang's own wire; elsewhere one piece is a whole answer, too
        ends = [len(sampling.output) // 2] if request.path == "/generate" else []
        for end in [*ends, len(sampling.output)]:
            chunk = write(body, sampling, end)
            for choice in chunk.get("choices", ()):
                if "message" in choice:
                    choice["delta"] = choice.pop("message")
                    for at, call in enumerate(choice["delta"].get("tool_calls") or ()):
                        call["index"] = at
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    # --- wires ----------------------------------------------------------------------------------

    def _sglang_prompt(self, body: dict[str, Any]) -> Sequence[int]:
        if body.get("input_ids") is None and isinstance(body.get("text"), str):
            return self._vocabulary.encode(body["text"])
        return _ids(body, "input_ids")

    def _meta(self, body: dict[str, Any], sampling: Sampling, end: int) -> dict[str, Any]:
        reason: dict[str, Any] = {"type": sampling.finish}
        if sampling.finish == "stop":
            reason["matched"] = sampling.output[-1] if sampling.output else None
        if sampling.finish == "length":
            reason["length"] = len(sampling.output)
        if sampling.finish == "abort":
            reason |= {"message": "Abort", "status_code": None, "err_type": None}
        rows = zip(sampling.logprobs[:end], sampling.output[:end], strict=True)
        return {
            "id": body.get("rid") or f"r{sampling.index}",
            "finish_reason": reason if end == len(sampling.output) else None,
            "prompt_tokens": len(sampling.prompt),
            "completion_tokens": end,
            "cached_tokens": 0,
            "weight_version": str(sampling.version),
            "e2e_latency": 0.01,
            "output_token_logprobs": [[value, token, None] for value, token in rows],
        }

    def _sglang(self, body: dict[str, Any], sampling: Sampling, end: int) -> dict[str, Any]:
        return {
            "text": self._vocabulary.decode(sampling.output[:end]),
            "output_ids": sampling.output[:end],
            "meta_info": self._meta(body, sampling, end),
        }

    def _chat_prompt(self, body: dict[str, Any]) -> Sequence[int]:
        if body.get("input_ids") is not None:
            return _ids(body, "input_ids")
        return self._vocabulary.render(body["messages"], body.get("tools"))

    def _chat(self, body: dict[str, Any], sampling: Sampling, end: int) -> dict[str, Any]:
        answer = sampling.answer
        content = answer.text if answer.raw is None else answer.raw
        message: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": None}
        if answer.thought:
            message["reasoning_content"] = message["reasoning"] = answer.thought
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{sampling.index}_{at}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for at, call in enumerate(answer.calls)
            ]
        choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = "tool_calls" if answer.calls else sampling.finish
        if body.get("logprobs"):
            choice["logprobs"] = self._logprobs(body, sampling)
        if body.get("return_meta_info"):
            choice["meta_info"] = self._meta(body, sampling, end)
        answered = _envelope("chat.completion", sampling, choice)
        if body.get("return_token_ids"):
            choice["token_ids"] = sampling.output
            answered["prompt_token_ids"] = sampling.prompt
        return answered

    def _logprobs(self, body: dict[str, Any], sampling: Sampling) -> dict[str, Any]:
        as_ids = body.get("return_tokens_as_token_ids")
        pairs = zip(sampling.output, sampling.logprobs, strict=True)
        rows: list[dict[str, Any]] = [
            {
                "token": f"token_id:{token}" if as_ids else self._vocabulary.decode([token]),
                "logprob": value,
                "bytes": None,
                "top_logprobs": [],
            }
            for token, value in pairs
        ]
        return {"content": rows}

    def _completion_prompt(self, body: dict[str, Any]) -> Sequence[int]:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._vocabulary.encode(prompt)
        return _ids({"prompt": prompt}, "prompt")

    def _completion(self, body: dict[str, Any], sampling: Sampling, end: int) -> dict[str, Any]:
        tokens = [self._vocabulary.decode([token]) for token in sampling.output]
        choice: dict[str, Any] = {
            "index": 0,
            "text": self._vocabulary.decode(sampling.output),
            "finish_reason": sampling.finish,
            "stop_reason": None,
            "logprobs": None,
        }
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": sampling.logprobs,
                "text_offset": [0] * len(tokens),
                "top_logprobs": [
                    {text: value} for text, value in zip(tokens, sampling.logprobs, strict=True)
                ],
            }
        if body.get("return_token_ids"):
            choice |= {"token_ids": sampling.output, "prompt_token_ids": sampling.prompt}
        return _envelope("text_completion", sampling, choice)

    def _tokens(self, body: dict[str, Any], sampling: Sampling, end: int) -> dict[str, Any]:
        wanted = body.get("sampling_params", {}).get("logprobs") is not None
        choice = {
            "index": 0,
            "token_ids": sampling.output,
            "finish_reason": sampling.finish,
            "logprobs": self._logprobs({"return_tokens_as_token_ids": True}, sampling)
            if wanted
            else None,
        }
        request_id = body.get("request_id") or f"r{sampling.index}"
        return {"request_id": request_id, "choices": [choice], "prompt_logprobs": None}

    # --- everything else ------------------------------------------------------------------------

    async def _describe(self, request: web.Request) -> web.Response:
        """Answer what gateways ask before they trust an engine."""
        path = request.path
        if path == "/v1/models":
            card = {"id": MODEL, "object": "model", "owned_by": "referee", "max_model_len": CONTEXT}
            return web.json_response({"object": "list", "data": [card]})
        if path in ("/tokenize", "/v1/tokenize"):
            ids = self._vocabulary.encode(str((await request.json()).get("prompt", "")))
            return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": CONTEXT})
        known: Mapping[str, Any] = {
            "/server_info": {"context_length": CONTEXT, "model_path": MODEL},
            "/get_server_info": {"context_length": CONTEXT, "model_path": MODEL},
            "/model_info": {"model_path": MODEL, "is_generation": True},
            "/get_model_info": {"model_path": MODEL, "is_generation": True},
            "/version": {"version": "0.20.0"},
            "/v1/loads": {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0}]},
            "/get_weight_version": {"weight_version": str(self.engine.version)},
        }
        if path in known or path in DONE:
            return web.json_response(known.get(path, {}))
        return _error(404, f"the referee's engine has no {path}")

    async def _control(self, request: web.Request) -> web.Response:
        """Call a method of ``ScenarioEngine``."""
        name = request.match_info["name"]
        try:
            body = await request.json()
            if "answers" in body:
                body["answers"] = TypeAdapter(list[PolicyAnswer]).validate_python(body["answers"])
            if name not in CONTROLS:
                return _error(404, f"the referee's engine has no {name}")
            result = await getattr(self.engine, name)(**body)
        except TimeoutError:
            return _error(408, "no prompt with this cue has come")
        except (TypeError, ValueError) as error:
            return _error(400, f"{type(error).__name__}: {error}")
        return web.json_response({"result": TypeAdapter(Any).dump_python(result, mode="json")})


@asynccontextmanager
async def serve_engine(
    engine: CueEngine, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve the engine in this loop, and yield its URL; raises RefereeError."""
    # without it a gateway that leaves would go unnoticed
    app = WireServer(engine).app
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise RefereeError(f"--port {port}: {error.strerror or error}") from error
        bound = runner.addresses[0][1]
        yield f"http://{host}:{bound}"
    finally:
        await runner.cleanup()


def _ids(body: Mapping[str, Any], key: str) -> Sequence[int]:
    found = body.get(key)
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise BadBody(f"{key} has to be a list of tokens")
    return found


def _limit(body: Mapping[str, Any]) -> int | None:
    params = body.get("sampling_params")
    places = [params] if isinstance(params, Mapping) else []
    for place in (*places, body):
        for key in ("max_new_tokens", "max_completion_tokens", "max_tokens"):
            if isinstance(place.get(key), int):
                return int(place[key])
    return None


def _envelope(kind: str, sampling: Sampling, choice: dict[str, Any]) -> dict[str, Any]:
    used = {"prompt_tokens": len(sampling.prompt), "completion_tokens": len(sampling.output)}
    return {
        "id": f"r{sampling.index}",
        "object": kind,
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [choice],
        "usage": {**used, "total_tokens": sum(used.values())},
    }


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "referee", "param": None, "code": status}
    return web.json_response({"error": error, "object": "error", "message": message}, status=status)
