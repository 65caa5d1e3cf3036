"""A scripted engine with one script for each conversation: the order of their requests varies."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.testing.completions import Completion, Reply
from agentrl.testing.scripted_engine import ScriptedEngine

MAIN = "main"
"""Script of every conversation that no other one is of."""


class ThreadedEngine(ScriptedEngine):
    """A scripted engine whose scripts are found by a text of the conversation's user messages."""

    def __init__(self, scripts: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__()
        self.set_scripts(scripts or {})

    def set_scripts(self, scripts: Mapping[str, Sequence[str]]) -> None:
        """Replace the scripts: the answers by the text that is looked for, or ``MAIN``."""
        self.scripts = {key: deque(map(Completion, texts)) for key, texts in scripts.items()}

    def choose_script(self, prompt: str) -> deque[Completion]:
        """Return the script of the conversation with this prompt."""
        user_text = "".join(
            part.partition("<|im_end|>")[0] for part in prompt.split("<|im_start|>user")[1:]
        )
        keys = (key for key in self.scripts if key != MAIN and key in user_text)
        return self.scripts.get(next(keys, MAIN), deque())

    async def _generate(self, body: dict[str, Any]) -> Reply:
        prompt = self.tokenizer.decode(body["input_ids"], skip_special_tokens=False)
        self.script = self.choose_script(prompt)
        return await super()._generate(body)
