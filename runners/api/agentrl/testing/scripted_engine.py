"""A fake SGLang server that gives the answers a test scripts.

It honours SGLang's wire contract: 3-tuples in ``output_token_logprobs``, string weight versions in
``meta_info``, ``length`` when ``max_new_tokens`` cuts an answer, unique request ids, aborts by
prefix and by disconnecting, SGLang's error bodies. Tests reach it over HTTP on loopback (``async
with``), or in process and in virtual time: it is a ``Connection`` of ``HttpEngine`` itself.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
import orjson
from aiohttp import web
from tokenizers import Tokenizer

from agentrl.testing.completions import Completion, Reply, Seen, routed
from agentrl.testing.loopback_server import LoopbackServer
from agentrl.testing.sglang_text import parse_tool_calls, separate_reasoning
from runners.engines.connection import Body, lost_connection_error, status_error
from runners.records.routing import RoutingShape
from runners.records.tokenizer import tiny_tokenizer

LONG_TOKENS = 1000
"""A request for more tokens takes ``ScriptedEngine.long_s``, if that is set."""


class ScriptedEngine(LoopbackServer):
    """A fake SGLang server; ``async with`` serves it at ``url``."""

    context_length: int | None = 40960
    long_s: float | None = None
    """Duration of a request for more than ``LONG_TOKENS`` tokens; None: as scripted."""
    deaf = False
    """Ignore aborts."""
    parsers: tuple[str, ...] = ("qwen25",)
    """Tool-call parsers that read Qwen's calls; others find none."""
    reasoning_parsers: tuple[str, ...] = ("qwen3",)
    """Reasoning parsers that read Qwen's thoughts; others find none."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer = tokenizer or tiny_tokenizer()
        self.script: deque[Completion] = deque()
        """The next answers; with an empty script the answer is ``always``, else 500."""
        self.always: Completion | None = None
        self.replies: deque[Reply] = deque()
        """Answers for the next requests of any path but ``/abort_request``, before the script."""
        self.always_reply: Reply | None = None
        """Answers them when ``replies`` is empty."""
        self.weight_version = "1"
        self.adapters: dict[str, str] | None = None
        """Loaded LoRA adapters, name → directory; None: it was started without ``--enable-lora``.
        """
        self._unloaded: dict[str, str] = {}
        self.shape: RoutingShape | None = None
        """Shape of its routing; None: it was started without ``--enable-return-routed-experts``."""
        self.seen = Seen()
        self.arrived = asyncio.Event()
        """Set when a generation arrives; a test clears it."""
        self.aborted = asyncio.Event()
        """Set when a generation is aborted, or its client disconnects."""
        self._running: dict[str, asyncio.Event] = {}
        """Request id → set when it is aborted."""

    def say(self, *completions: Completion | str) -> Self:
        """Add answers to the script."""
        self.script += [Completion(c) if isinstance(c, str) else c for c in completions]
        return self

    @property
    def running(self) -> int:
        """Return the number of generations that run."""
        return len(self._running)

    # --- in process -----------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        body: Body | None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """See ``Connection.request``."""
        whole = b"".join(body) if isinstance(body, tuple) else body or b""
        try:
            reply = await self._reply(path.partition("?")[0], whole)
        except aiohttp.ServerDisconnectedError as error:
            raise lost_connection_error("scripted", path, error) from error
        if reply.status != 200:
            raise status_error("scripted", path, reply.status, reply.body, reply.headers)
        return reply.body

    async def close(self) -> None:
        """See ``Connection.close``: nothing is open."""

    # --- over HTTP ------------------------------------------------------------------------------

    async def __aexit__(self, *_: object) -> None:
        for event in self._running.values():
            event.set()
        await super().__aexit__()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            reply = await self._reply(request.path, await request.read())
        except aiohttp.ServerDisconnectedError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(
            status=reply.status,
            body=reply.body,
            headers={"content-type": "application/json", **reply.headers},
        )

    # --- endpoints ------------------------------------------------------------------------------

    async def _reply(self, path: str, raw: bytes) -> Reply:
        body = orjson.loads(raw or b"{}")
        self.seen.calls.append((path, body))
        if path == "/abort_request":
            self._abort(body)
            return Reply()
        if path == "/generate":
            self.arrived.set()
        if self.replies or self.always_reply is not None:
            reply = self.replies.popleft() if self.replies else self.always_reply
            assert reply is not None
            try:
                await asyncio.sleep(reply.delay_s)
            except asyncio.CancelledError:
                self.seen.aborted.append(body.get("rid", ""))
                raise
            return reply
        match path:
            case "/generate":
                return await self._generate(body)
            case "/health" | "/health_generate":
                return Reply()
            case "/update_weights_from_disk":
                self.weight_version = body["weight_version"]
                return _json({"success": True, "message": "", "num_paused_requests": 0})
            case "/load_lora_adapter" | "/unload_lora_adapter":
                return self._change_adapters(path, body)
            case "/update_weight_version":
                self.weight_version = body["new_version"]
                if body.get("abort_all_requests", True):
                    self._abort({"abort_all": True})
                return _json({"success": True, "new_version": self.weight_version})
            case "/v1/loads":
                row = {"dp_rank": 0, "num_running_reqs": self.running, "num_waiting_reqs": 0}
                return _json({"timestamp": 0.0, "version": "x", "loads": [row]})
            case "/server_info":
                return _json({"context_length": self.context_length})
            case "/tokenize":
                ids = self.tokenizer.encode(body["prompt"], add_special_tokens=False).ids
                return _json({"tokens": ids, "count": len(ids), "max_model_len": 40960})
            case "/separate_reasoning":
                known = body["reasoning_parser"] in self.reasoning_parsers
                return _json(separate_reasoning(body["text"], known=known))
            case "/parse_function_call":
                known = body["tool_call_parser"] in self.parsers
                return _json(parse_tool_calls(body["text"], body["tools"] if known else []))
        return Reply(status=404)

    def _abort(self, body: dict[str, Any]) -> None:
        """Abort by prefix, as SGLang does; an unknown id is ignored."""
        if self.deaf:
            return
        if body.get("abort_all"):
            rids = list(self._running)
        else:
            rids = [rid for rid in self._running if rid.startswith(body["rid"])]
            self.seen.aborted.append(body["rid"])
            self.aborted.set()
        for rid in rids:
            self._running[rid].set()
        if body.get("abort_all"):
            self.seen.aborted += rids

    def _change_adapters(self, path: str, body: dict[str, Any]) -> Reply:
        """Load or unload adapters as ``tokenizer_control_mixin.py`` of SGLang 0.5.15 does."""
        name, error = body["lora_name"], ""
        loaded = self.adapters
        if loaded is None:
            error = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
        elif path == "/unload_lora_adapter":
            if name in loaded:
                self._unloaded[name] = loaded.pop(name)
            else:
                error = f"LoRA with name {name} does not exist. Loaded LoRAs: {list(loaded)}"
        elif name in loaded:
            error = f"Failed to load LoRA adapter {name} because it is already loaded"
        else:
            loaded[name] = body["lora_path"]
        answer = {"success": not error, "error_message": error, "loaded_adapters": loaded}
        return Reply(orjson.dumps(answer), 400 if error else 200)

    def _refuse_adapter(self, name: str | None) -> str | None:
        """Return why ``lora_path`` is refused; adapters that were unloaded are loaded again."""
        if not name:
            return None
        if self.adapters is None:
            return f"LoRA adapter '{name}' was requested, but LoRA is not enabled. "
        if name in self._unloaded:
            self.adapters.setdefault(name, self._unloaded[name])
        if name not in self.adapters:
            return f"Got LoRA adapter that has never been loaded: {name}"
        return None

    async def _generate(self, body: dict[str, Any]) -> Reply:
        _check(body)
        if (refusal := self._refuse_adapter(body.get("lora_path"))) is not None:
            return _error(400, refusal)
        self.seen.requests.append(body)
        self.seen.began.append(asyncio.get_running_loop().time())
        completion = self._next_completion(body["sampling_params"]["max_new_tokens"])
        if completion is None:
            return _error(500, "the script is at its end")
        rid, version = body["rid"], self.weight_version
        if rid in self._running:
            return _error(400, f"Duplicate request ID detected: {rid}")
        aborted = self._running[rid] = asyncio.Event()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(completion.delay_s):
                await aborted.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.seen.aborted.append(rid)
            self.aborted.set()
            raise
        finally:
            del self._running[rid]
        if version != self.weight_version:
            self.seen.mixed.append(rid)
        if completion.drops:
            raise aiohttp.ServerDisconnectedError
        if completion.raw is not None:
            return Reply(completion.raw, completion.status, completion.headers)
        if completion.status != 200:
            return _error(completion.status, completion.message, completion.headers)
        sampled = (clock() - began) / completion.delay_s if aborted.is_set() else 1.0
        return _json(self._answer(body, completion, sampled, aborted=aborted.is_set()))

    def _next_completion(self, tokens: int) -> Completion | None:
        if self.long_s is not None and tokens > LONG_TOKENS:
            return Completion("a<|im_end|>", delay_s=self.long_s)
        return self.script.popleft() if self.script else self.always

    def _answer(
        self, body: dict[str, Any], completion: Completion, sampled: float, *, aborted: bool
    ) -> dict[str, Any]:
        """Return the answer, of an aborted request the share of its tokens that is ``sampled``."""
        ids = self.tokenizer.encode(completion.text, add_special_tokens=False).ids
        ids = ids if completion.ids is None else list(completion.ids)
        ids = ids[: int(len(ids) * sampled)]
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
        encoded = self._encode_routing(body, ids, completion)
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
                "queue_time": completion.queue_s,
                "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
                **({} if encoded is None else {"routed_experts": encoded}),
            },
        }

    def _encode_routing(
        self, body: dict[str, Any], ids: list[int], completion: Completion
    ) -> str | None:
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
    known = {"rid", "input_ids", "sampling_params", "return_logprob", "stream", "lora_path"}
    assert set(body) <= known | {"return_routed_experts", "routed_experts_start_len"}, body
    assert 0 <= body.get("routed_experts_start_len", 0) <= len(body["input_ids"])
    assert body["return_logprob"] is True
    assert body["input_ids"]
    assert all(type(token) is int for token in body["input_ids"])
    assert body["sampling_params"]["max_new_tokens"] >= 1


def _json(value: dict[str, Any]) -> Reply:
    return Reply(orjson.dumps(value))


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(orjson.dumps({"error": {"message": message}}), status, headers or {})
