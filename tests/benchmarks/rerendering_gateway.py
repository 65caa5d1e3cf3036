"""``python -m tests.benchmarks.rerendering_gateway``: an adapter as others write them, for
comparison: each request is parsed, rendered and tokenised whole, with our parser, renderer,
tokenizer and answers.

It keeps nothing: no session, no turn, no store. It has the announcement and as much of the admin
API as the benchmark's client needs. With ``bytes_per_token`` in its settings it does not even read
the request, but sends the engine a prompt of about its length: what any adapter must do.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import orjson
import uvloop
from aiohttp import web

from runners.engines.client import HttpEngine
from runners.engines.contract import SamplingParams
from runners.gateway.conversation import group_messages, read_answer
from runners.gateway.dialects import anthropic
from runners.gateway.settings import GatewaySettings
from runners.gateway.texts.text_work import TextWork, make_text_work
from runners.records.record import IdArray
from runners.system.processes.service import announce, receive_settings

ADMIN_KEY = "admin"


SMALL = b'{"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "x"}]}'


def make_app(work: TextWork, engine: HttpEngine, bytes_per_token: float | None) -> web.Application:
    """Return the adapter."""
    numbers = iter(range(1, 1 << 40))
    held: dict[str, IdArray] = {}
    """Ids that are sent in place of those that are not read, by key of the session."""

    async def answer(request: web.Request) -> web.Response:
        sent = await request.read()
        read_of = sent if bytes_per_token is None else SMALL
        parsed = anthropic.TURN.parse_request(read_of, request.headers)
        asked, builder = parsed.request, parsed.builder
        prompt = work.render(group_messages(asked.pieces), asked.tools).ids
        ids = np.array(prompt, np.int32)
        if bytes_per_token is not None:
            length, key = int(len(sent) / bytes_per_token), request.headers["x-api-key"]
            if length > len(held.get(key, ())):
                held[key] = np.resize(ids, 2 * length)
            ids = held[key][:length]
        params = SamplingParams(asked.max_tokens, stop_token_ids=work.stop_token_ids())
        rid = f"{request.headers['x-api-key']}:main:{next(numbers)}"
        generation = await engine.generate(ids, params, rid=rid)
        read = work.read_output(generation.output_ids.tolist(), asked.tools, prompt)
        said = read_answer(read.parsed, generation, builder.CALL_ID_PREFIX)
        message_id = builder.new_message_id()
        body = builder.build_response(said, asked, message_id)
        opening = builder.open_stream(asked, message_id, len(prompt))
        return web.Response(
            body=opening + builder.complete_stream(body), content_type="text/event-stream"
        )

    async def add_session(request: web.Request) -> web.Response:
        wanted = orjson.loads(await request.read())
        name = wanted["session_id"]
        return web.json_response({"session_id": name, "api_key": name})

    async def do_nothing(request: web.Request) -> web.Response:
        return web.json_response({"breaks": []})

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/messages", answer)
    app.router.add_post("/admin/sessions", add_session)
    app.router.add_route("*", "/admin/{rest:.*}", do_nothing)
    return app


async def serve() -> None:
    """Serve until SIGTERM."""
    received = receive_settings()
    bytes_per_token = received.pop("bytes_per_token", None)
    settings = GatewaySettings.model_validate(received)
    assert settings.tokenizer is not None
    engine = HttpEngine(settings.engine_url)
    work = make_text_work(Path(settings.tokenizer), settings.renderer, settings.control_text)
    app = make_app(work, engine, bytes_per_token)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    announce({"url": f"http://127.0.0.1:{port}", "admin_key": ADMIN_KEY, "pid": os.getpid()})
    await stop.wait()
    await runner.cleanup()
    await engine.close()


if __name__ == "__main__":
    uvloop.run(serve())
