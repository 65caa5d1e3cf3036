"""A fake of ``python -m sglang.launch_server``: its command line, its health endpoints, and a
scheduler process that must not outlive it.

``FAKE_SGLANG`` says how it behaves: ``die`` before it generates, ``die_later`` after.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys

import orjson
from aiohttp import web

LOADING_LOOKS = 2
"""Number of times that ``/health_generate`` answers 503 first."""

LORA_TARGETS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "kv_a_proj_with_mqa", "q_b_proj"),
    *("kv_b_proj", "wq_b", "wk", "weights_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj"),
    *("gate_up_proj", "embed_tokens", "lm_head", "all"),
)
"""Choices of ``--lora-target-modules`` in SGLang 0.5.15 (``sglang/srt/utils/common.py``)."""


def arguments() -> argparse.Namespace:
    """Read SGLang's command line, the part that agentrl writes."""
    parser = argparse.ArgumentParser()
    for flag in ("model-path", "tokenizer-path", "host", "weight-version"):
        parser.add_argument(f"--{flag}", required=True)
    for flag in ("port", "context-length", "tp-size", "random-seed"):
        parser.add_argument(f"--{flag}", required=True, type=int)
    parser.add_argument("--mem-fraction-static", type=float)
    numbers = ("auto", "half", "float16", "bfloat16", "float", "float32")
    parser.add_argument("--dtype", choices=numbers)
    parser.add_argument("--enable-return-routed-experts", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int)
    parser.add_argument("--lora-target-modules", nargs="*", choices=LORA_TARGETS)
    parser.add_argument("--max-loras-per-batch", type=int, default=8)
    parser.add_argument("--tool-call-parser")
    parser.add_argument("--reasoning-parser")
    parser.add_argument("--dp-size", type=int, default=1)
    return parser.parse_args()


async def serve(asked: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    looks = 0
    scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def health(request: web.Request) -> web.Response:
        nonlocal looks
        looks += 1
        if looks > LOADING_LOOKS and os.environ.get("FAKE_SGLANG") == "die_later":
            asyncio.get_running_loop().call_later(0.1, os._exit, 9)
        return web.Response(status=200 if looks > LOADING_LOOKS else 503)

    async def info(request: web.Request) -> web.Response:
        found = {**vars(asked), "scheduler": scheduler.pid}
        return web.Response(body=orjson.dumps(found), content_type="application/json")

    app = web.Application()
    app.router.add_get("/health_generate", health)
    app.router.add_get("/health", health)
    app.router.add_get("/server_info", info)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, asked.host, asked.port).start()
    print("The server is fired up and ready to roll!", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if os.environ.get("FAKE_SGLANG") == "die":
        print("torch.OutOfMemoryError: CUDA out of memory", file=sys.stderr)
        raise SystemExit(3)
    asyncio.run(serve(arguments()))
