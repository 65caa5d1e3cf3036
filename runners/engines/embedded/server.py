"""The embedded engine behind SGLang's HTTP API: one handler per endpoint.

Invariant: shapes and status codes are SGLang's, so a client cannot tell the two apart.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from conf.errors import error_text
from runners.engines.contract import EngineError
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.request import RequestSampling
from runners.engines.embedded.validation import describe_errors
from runners.engines.embedded.weight_plan import WeightPlan
from runners.engines.embedded.wire import build_answer, parse_body, parse_generate

BODY_BYTES = 64 << 20
HEALTH_DEADLINE_S = 20.0
"""Deadline of ``/health_generate`` (SGLang's default)."""

Command = TypeVar("Command", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AbortCommand(_Command):
    """``/abort_request``."""

    rid: str = ""
    abort_all: bool = False
    abort_message: str | None = None


class UpdateCommand(_Command):
    """``/update_weights_from_disk``; the prefix cache is always flushed."""

    model_path: str
    weight_version: int | None = None
    abort_all_requests: bool = False
    in_flight: bool = False
    """Not SGLang's: make the weights ready beside the running requests and change between two of
    their tokens, instead of waiting for their end.
    """
    load_format: Literal["auto", "safetensors"] | None = None
    flush_cache: Literal[True] | None = None
    torch_empty_cache: bool | None = None


class TokenizeCommand(_Command):
    """``/tokenize``."""

    prompt: str
    add_special_tokens: bool = True


class PauseCommand(_Command):
    """``/pause_generation``."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueCommand(_Command):
    """``/continue_generation``."""

    torch_empty_cache: bool = True


class WeightUpdateLock:
    """A readers-writer lock: generations run together, a weight update runs alone.

    Like SGLang's ``model_update_lock``. A waiting update holds back later generations, so it cannot
    starve; a generation never continues with other weights, unless the engine was paused first or
    the update is one in flight.
    """

    def __init__(self) -> None:
        self._entry = asyncio.Lock()
        """Held by an update from its request to its end, by a generation only to enter."""
        self._generations = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[None]:
        """Hold the lock together with other generations."""
        async with self._entry:
            self._generations += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._generations -= 1
            if not self._generations:
                self._idle.set()

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Hold the lock alone, once the earlier generations have ended."""
        async with self._entry:
            await self._idle.wait()
            yield


@dataclass(frozen=True, slots=True)
class EngineServer:
    """The handlers of the endpoints; all other state is the core's."""

    core: EngineCore
    plans: WeightPlan = field(default_factory=lambda: WeightPlan({}))
    weight_update_lock: WeightUpdateLock = field(default_factory=WeightUpdateLock)

    def application(self) -> web.Application:
        """Build the aiohttp application."""
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[_errors])
        for path, methods, handler in (
            ("/generate", ("POST", "PUT"), self.generate),
            ("/abort_request", ("POST",), self.abort),
            ("/flush_cache", ("GET", "POST"), self.flush),
            ("/update_weights_from_disk", ("POST",), self.update_weights),
            ("/pause_generation", ("POST",), self.pause),
            ("/continue_generation", ("POST",), self.resume),
            ("/health", ("GET",), self.health),
            ("/health_generate", ("GET",), self.health_generate),
            ("/server_info", ("GET",), self.server_info),
            ("/get_server_info", ("GET",), self.server_info),
            ("/model_info", ("GET",), self.model_info),
            ("/get_model_info", ("GET",), self.model_info),
            ("/v1/loads", ("GET",), self.loads),
            ("/get_weight_version", ("GET",), self.weight_version),
            ("/tokenize", ("POST",), self.tokenize),
        ):
            for method in methods:
                app.router.add_route(method, path, handler)
        return app

    async def generate(self, request: web.Request) -> web.Response:
        """Run one request. A client that disconnects cancels the handler, which aborts it."""
        call = parse_generate(await request.read(), self.core.config.eos_token_ids)
        async with self.weight_update_lock.generation():
            done = await self.core.run(
                call.rid,
                call.prompt,
                call.sampling,
                call.routing_start,
                call.logprob_start,
                self.plans.take(call.rid, call.prompt),
            )
        return _json(build_answer(call, done, self.core))

    async def abort(self, request: web.Request) -> web.Response:
        """Abort all requests, or those whose rid begins with ``rid``, as SGLang does.

        Unknown and empty rids are ignored.
        """
        command = _parse(AbortCommand, await request.read())
        if command.abort_all:
            await self.core.abort(lambda rid: True)
        elif command.rid:
            await self.core.abort(lambda rid: rid.startswith(command.rid))
        return web.Response()

    async def flush(self, request: web.Request) -> web.Response:
        """Empty the prefix cache; 400 while requests are pending."""
        if await self.core.flush_cache():
            return web.Response(text="Cache flushed.\n")
        return web.Response(
            text="Cache not flushed: there are running or waiting requests.\n", status=400
        )

    async def update_weights(self, request: web.Request) -> web.Response:
        """Switch to the weights of a directory once no request runs, or at once while paused or if
        it is to happen in flight.

        400 leaves the old weights.
        """
        command = _parse(UpdateCommand, await request.read())
        if command.abort_all_requests:
            await self.core.abort(lambda rid: True)
        version, at_once = command.weight_version, self.core.paused or command.in_flight
        try:
            async with nullcontext() if at_once else self.weight_update_lock.update():
                paused = await self.core.switch_weights(
                    Path(command.model_path), version, retract=command.in_flight
                )
        except EngineError as error:
            if error.status != web.HTTPBadRequest.status_code:
                raise
            failed = {"success": False, "message": str(error), "num_paused_requests": 0}
            return _json(failed, error.status)
        message = "Succeeded to update model weights."
        if version is not None:
            message += f" Weight version updated to {version}."
        return _json({"success": True, "message": message, "num_paused_requests": paused})

    async def pause(self, request: web.Request) -> web.Response:
        """Stop generating until ``/continue_generation``."""
        await self.core.pause(_parse(PauseCommand, await request.read()).mode)
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        """Generate again."""
        _parse(ContinueCommand, await request.read())
        await self.core.resume()
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def health(self, request: web.Request) -> web.Response:
        """Answer 200 while the worker lives."""
        return web.Response(status=200 if await self.core.healthy() else 503)

    async def health_generate(self, request: web.Request) -> web.Response:
        """Answer 200 if a token can be generated, or other requests make progress."""
        before = self.core.steps
        prompt = np.zeros(1, dtype=np.int32)
        probe = self.core.run(f"HEALTH_CHECK_{uuid.uuid4().hex}", prompt, RequestSampling(1))
        try:
            await asyncio.wait_for(probe, HEALTH_DEADLINE_S)
        except (TimeoutError, EngineError):
            return web.Response(status=200 if self.core.steps > before else 503)
        return web.Response()

    async def server_info(self, request: web.Request) -> web.Response:
        """Report limits, model and load."""
        core, load = self.core, await self.core.load()
        return _json(
            {
                "engine": "agentrl-embedded",
                **self._model(),
                "max_running_requests": core.max_running_requests,
                "max_total_num_tokens": core.cache_tokens,
                "context_length": core.max_context_tokens,
                "enable_return_routed_experts": True,
                "paused": core.paused,
                "planned_tokens": {str(key): n for key, n in load.planned_tokens.items()},
                "internal_states": [
                    {
                        "num_running_reqs": load.running,
                        "num_waiting_reqs": load.waiting,
                        "cached_tokens": load.cached_tokens,
                        "forward_passes": load.steps,
                        "generated_tokens": load.generated_tokens,
                    }
                ],
            }
        )

    async def model_info(self, request: web.Request) -> web.Response:
        """Report the model."""
        return _json(self._model())

    async def tokenize(self, request: web.Request) -> web.Response:
        """Return the ids of a text; 400 without a tokenizer."""
        command, core = _parse(TokenizeCommand, await request.read()), self.core
        if core.tokenizer is None:
            raise EngineError("The engine was started without a tokenizer.", status=400)
        encoded = core.tokenizer.encode(
            command.prompt, add_special_tokens=command.add_special_tokens
        )
        ids, limit = encoded.ids, core.max_context_tokens
        return _json({"tokens": ids, "count": len(ids), "max_model_len": limit})

    async def weight_version(self, request: web.Request) -> web.Response:
        """Report the version of the weights in use."""
        return _json({"weight_version": str(self.core.weight_version)})

    async def loads(self, request: web.Request) -> web.Response:
        """Count running and waiting requests."""
        core, load = self.core, await self.core.load()
        row = {
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_total_reqs": load.running + load.waiting,
            "num_used_tokens": load.used_tokens,
            "max_total_num_tokens": core.cache_tokens,
            "token_usage": load.used_tokens / core.cache_tokens,
            "max_running_requests": core.max_running_requests,
        }
        return _json({"timestamp": time.time(), "version": "agentrl-embedded", "loads": [row]})

    def _model(self) -> dict[str, Any]:
        core = self.core
        return {
            "model_path": str(core.model_path),
            "tokenizer_path": None if core.tokenizer_path is None else str(core.tokenizer_path),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": str(core.weight_version),
            "model_type": core.config.model_type,
            "vocab_size": core.config.vocab_size,
        }


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except EngineError as error:
        return _error(error_text(error), error.status or 500)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _error(f"{request.method} {request.path}: {error.reason}", error.status)
    except Exception as error:
        # the top of a request handler: the client gets an answer, the log the traceback
        traceback.print_exc(file=sys.stderr)
        return _error(f"{type(error).__name__}: {error_text(error)}", 500)


def _parse(model: type[Command], raw: bytes) -> Command:
    body = parse_body(raw)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise EngineError("; ".join(describe_errors(error)), status=400) from error


def _error(message: str, status: int) -> web.Response:
    return _json({"error": {"message": message}}, status)


def _json(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
