"""Give an agent program more to read than the task: ``harness.prompt``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conf.sections.harness import TASK
from runners.rollouts.contract import Harness, HarnessContext, HarnessResult
from runners.sandboxes.contract import Sandbox


class PromptedHarness:
    """A harness whose program gets a text with the task in it."""

    def __init__(self, harness: Harness, prompt: str) -> None:
        self._harness = harness
        self._prompt = prompt

    def mounts(self) -> dict[str, Path]:
        """Return the program's files."""
        return self._harness.mounts()

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run the program; see the contract."""
        prompt = self._prompt.replace(TASK, context.prompt)
        return await self._harness.run(sandbox, replace(context, prompt=prompt))
