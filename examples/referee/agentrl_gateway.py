"""The adapter of agentrl's own gateway: it starts one, in the directory `judged`."""

import atexit
import json
import subprocess
from dataclasses import asdict

from agentrl import GatewayClient

GATEWAY = []


def start(engine, tokenizer):
    """Start it before that engine; its first line has its address and the key of its API."""
    keys = ["engine=sglang", f"engine.url={engine}", f"model.tokenizer={tokenizer}", "model=local"]
    command = ["agentrl", "gateway", *keys, "model.renderer=qwen3", "run.dir=judged"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    atexit.register(process.terminate)
    started = json.loads(process.stdout.readline())
    GATEWAY.append(GatewayClient(started["url"], started["admin_key"]))


def open():
    """Open a session: the base URL, the headers of its program, and what finish needs."""
    session = (block := GATEWAY[0].session()).__enter__()
    return session.base_url, {"x-api-key": session.api_key}, (session, block)


def finish(handle):
    """Return the session's chains."""
    chains = handle[0].finish().segments
    return [asdict(c) | {"mask": c.loss_mask, "versions": c.weight_versions} for c in chains]
