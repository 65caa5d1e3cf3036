"""An agent whose requests are shaped like recorded ones: size, growth, streaming.

Claude Code 2.1.197 sent 78,047 bytes first (system prompt and tools), and 4,600 more in each of
the 41 turns before its first compaction. The texts are our own documentation and sources, on which
the tokenizer is trained: 4 bytes a token, as real ones have of code.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from tokenizers import Tokenizer

from agentrl.testing.completions import Completion, spoken
from runners.records.tokenizer import train_tokenizer
from tests.fakes.running_gateway import (
    TOOLS,
    assemble_message,
    echo,
    read_events,
    results,
    user,
)

FIRST_BYTES = 78_000
GROWN_BYTES = 4_600
RECORDED_TURNS = 41
CALL = spoken(
    [
        {
            "type": "text",
            "text": "The test names the function, so I look where it is defined. " * 3,
        },
        {"type": "tool_use", "name": "Bash", "input": {"command": "grep -rn 'def add' src | head"}},
    ]
)
ANSWER = Completion(CALL)
"""Of the engine, in every turn."""
_AROUND = 700
"""Bytes of a turn beside its tool's output: the answer, and the marks of both messages."""
_ROOT = Path(__file__).parents[3]
VOCABULARY = 16_384


@cache
def read_prose() -> str:
    """Return the documentation."""
    return "".join(path.read_text() for path in sorted((_ROOT / "docs").glob("*.md")))


@cache
def read_code() -> str:
    """Return the sources of two packages."""
    files = [path for name in ("conf", "launch") for path in (_ROOT / name).rglob("*.py")]
    return "".join(path.read_text() for path in sorted(files))


def make_tokenizer() -> Tokenizer:
    """Train the tokenizer of these texts; takes seconds."""
    return train_tokenizer([read_prose(), read_code()], VOCABULARY)


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that takes so many turns, then ends."""

    turns: int

    async def play(
        self, http: aiohttp.ClientSession, url: str, key: str, prompt: str, seed: int
    ) -> None:
        """Take all turns; raises aiohttp.ClientError."""
        dice, code, messages = random.Random(seed), read_code(), [user(prompt)]
        body: dict[str, Any] = {"model": "policy", "max_tokens": 500, "tools": TOOLS}
        body |= {"system": read_prose()[:FIRST_BYTES], "messages": messages, "stream": True}
        for _ in range(self.turns):
            async with http.post(
                f"{url}/v1/messages", data=orjson.dumps(body), headers={"x-api-key": key}
            ) as response:
                response.raise_for_status()
                answer = assemble_message(read_events(await response.read()))
            place = dice.randrange(len(code) - GROWN_BYTES)
            output = code[place : place + GROWN_BYTES - _AROUND]
            messages += [echo(answer), results(answer, output)]
