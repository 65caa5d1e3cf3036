"""What the rooms above an engine rely on: SGLang's HTTP API, typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from conf.errors import AgentrlError, ExitCode
from runners.trajectory.record import IdArray, LogprobArray


class EngineError(AgentrlError):
    """The engine failed or refused; ``status`` is the HTTP status, None when it could not be
    reached. ``pushed_back``: it has too much to do, and said so; ``retry_after_s``: for how long.
    ``dropped``: the connection ended before a word of an answer, as one does that the server closed
    while it was idle. ``unreachable``: there was no connection, so nothing was begun.
    """

    exit_code = ExitCode.SERVICE_GONE

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        pushed_back: bool = False,
        retry_after_s: float = 0.0,
        dropped: bool = False,
        unreachable: bool = False,
    ) -> None:
        self.status = status
        self.retryable = retryable
        self.pushed_back = pushed_back
        self.retry_after_s = retry_after_s
        self.dropped = dropped
        self.unreachable = unreachable
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """SGLang's ``sampling_params``, the part we use."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int | None = None
    routing_start: int | None = None
    """First position of prompt + output whose routing is wanted; None: none is."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of ``/generate``."""

    output_ids: IdArray
    """[m] sampled ids, stop token included."""
    logprobs: LogprobArray
    """[m] after temperature."""
    finish_reason: str
    """stop | length | abort"""
    matched: int | str | None
    """The stop token or string that ended it."""
    prompt_tokens: int
    cached_tokens: int
    weight_version: int
    engine_s: float
    routing: NDArray[np.int32] | None = None
    """[rows · layers · top_k] experts from ``routing_start`` on, rows being prompt + output − 1 −
    start; None where the engine sent none.
    """
    queue_s: float = 0.0
    """Of ``engine_s``, how long the request waited to be run; 0 where the engine does not say."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine has to do, over all its data-parallel ranks."""

    running: int
    waiting: int

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self.running and not self.waiting


def session_id_of(rid: str) -> str:
    """Return whose call it is: what stands before the first colon of its request id."""
    return rid.partition(":")[0]


class Engine(Protocol):
    """A running engine."""

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample a continuation; raises EngineError. Cancelling the call aborts the request at the
        engine.
        """
        ...

    async def update_weights(self, path: Path, version: int) -> None:
        """Load safetensors weights from a directory, flush the cache, and report ``version`` from
        then on.
        """
        ...

    async def healthy(self) -> bool:
        """Whether it answers."""
        ...

    async def close(self) -> None:
        """Close the client's connections (not the engine)."""
        ...


class ServedEngine(Engine, Protocol):
    """An engine as the driver holds it: with what a drain needs."""

    async def loads(self) -> EngineLoad:
        """Return what it has to do; raises EngineError."""
        ...

    async def abort_all(self) -> None:
        """Abort every request, whoever made it."""
        ...
