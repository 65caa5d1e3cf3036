"""A sketch for slime's agent adapters in this process; not run. Read at THUDM/slime,
slime/agent/adapters: common.py 0ee40d54, anthropic.py 01931033.
"""

import asyncio
import threading
import uuid

from aiohttp import web
from slime.agent.adapters.anthropic import AnthropicAdapter
from slime.utils.types import Sample
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("TOKENIZER")
ADAPTER = AnthropicAdapter(tokenizer=tokenizer, sglang_url="http://127.0.0.1:9000")
serve = lambda: web.run_app(ADAPTER.app, port=9001, handle_signals=False)  # noqa: E731
threading.Thread(target=serve, daemon=True).start()


def open():
    """Open a session; its id is the key."""
    ADAPTER.open_session(session := uuid.uuid4().hex)
    return "http://127.0.0.1:9001", {"x-api-key": session}, session


def finish(session):
    """Return its samples; their masks and logprobs are of the response alone."""
    found = asyncio.run(ADAPTER.finish_session(session, base_sample=Sample(index=0)))
    prompts = [[0] * (len(s.tokens) - s.response_length) for s in found]
    return [{"tokens": s.tokens, "mask": p + s.loss_mask} for s, p in zip(found, prompts)]  # noqa: B905
