"""An engine in this process whose answers take exact times, for tests in virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from runners.engines.contract import EngineError, Generation, SamplingParams


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one try."""

    seconds: float = 0.0
    error: EngineError | None = None
    finish: str = "stop"
    queue_s: float = 0.0


@dataclass(slots=True)
class Try:
    """A try as the engine saw it."""

    rid: str
    began: float
    cancelled: bool = False


@dataclass(slots=True)
class TimedEngine:
    """Takes the next step of the script for each try; succeeds at once when the script is empty."""

    script: deque[Step] = field(default_factory=deque)
    tries: list[Try] = field(default_factory=list)
    running: int = 0
    version: int = 0

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Do what the script says."""
        step = self.script.popleft() if self.script else Step()
        seen = Try(rid, asyncio.get_running_loop().time())
        self.tries.append(seen)
        self.running += 1
        version = self.version
        try:
            await asyncio.sleep(step.seconds)
        except asyncio.CancelledError:
            seen.cancelled = True
            raise
        finally:
            self.running -= 1
        if step.error is not None:
            raise step.error
        assert version == self.version, "the weights changed under a generation"
        return Generation(
            output_ids=np.asarray([1], dtype=np.int32),
            logprobs=np.asarray([-0.5], dtype=np.float32),
            finish_reason=step.finish,
            matched=None,
            prompt_tokens=len(input_ids),
            cached_tokens=0,
            weight_version=version,
            engine_s=step.seconds,
            queue_s=step.queue_s,
        )

    async def update_weights(self, path: Path, version: int) -> None:
        """Change the weights."""
        assert not self.running, "the weights change under a generation"
        self.version = version

    async def healthy(self) -> bool:
        """It is."""
        return True

    async def close(self) -> None:
        """Nothing is open."""
