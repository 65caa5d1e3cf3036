"""The engine as the rest of agentrl sees it: SGLang's ``/generate``, typed.

Invariant: output ids and logprobs of a generation belong together, one logprob per sampled id.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conf.errors import AgentrlError, ExitCode
from runners.records.record import IdArray, LogprobArray, WeightSpans

REQUEST_STATUS = frozenset({400, 413, 422})
"""HTTP statuses of a request that is refused for what it contains."""

ADAPTER_NAME = "agentrl"
"""Name of a run's adapters at its engine."""


class EngineError(AgentrlError):
    """The engine failed or refused.

    ``status``: HTTP status of the answer; None without an answer.
    ``retryable``: the same request may succeed later.
    ``pushed_back``: the engine reported overload; ``retry_after_s``: how long it asks to wait.
    ``dropped``: the connection ended before the answer began, as an idle connection does that the
    server closes just then. ``unreachable``: no connection was made, so nothing was started.
    ``too_long``: the prompt, or prompt and answer together, exceed the model's context.
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
        too_long: bool = False,
    ) -> None:
        self.status = status
        self.retryable = retryable
        self.pushed_back = pushed_back
        self.retry_after_s = retry_after_s
        self.dropped = dropped
        self.unreachable = unreachable
        self.too_long = too_long
        super().__init__(message)

    @property
    def by_request(self) -> bool:
        """Return whether it refused what the request contains; another one may be answered."""
        return self.too_long or self.status in REQUEST_STATUS


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt as texts, for an engine that takes no token ids."""

    messages: list[dict[str, Any]]
    """In chat form: system, user, assistant, tool; the arguments of tool calls are objects."""
    tools: list[dict[str, Any]]
    """Functions that the model may call, in OpenAI's envelope."""


@dataclass(frozen=True, slots=True)
class TextCall:
    """A tool call as an endpoint parsed it."""

    name: str
    arguments: dict[str, Any] | None
    """None if the model wrote no JSON object."""
    raw: str
    """The call as text."""


@dataclass(frozen=True, slots=True)
class TextReply:
    """An answer as texts, of an engine that gives no token ids."""

    text: str
    reasoning: str
    calls: tuple[TextCall, ...]
    completion_tokens: int
    """As the endpoint counts and bills them, reasoning included."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The part of SGLang's ``sampling_params`` that agentrl uses."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int | None = None
    routing_start: int | None = None
    """First position of prompt + output whose routing is returned; None: no routing."""
    conversation: Conversation | None = None
    """The prompt, if the engine takes texts: then ``input_ids`` is empty."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of ``/generate``; m tokens were sampled."""

    output_ids: IdArray
    """int32 [m]: sampled ids, stop token included."""
    logprobs: LogprobArray
    """float32 [m]: natural log, of the distribution after temperature, before top-p and top-k."""
    finish_reason: str
    """``stop``, ``length`` or ``abort``; of an endpoint also ``refusal``: its filter ended it."""
    matched: int | str | None
    """Stop token or stop string that ended it; None for other reasons."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were in its cache; 0 if the engine does not report them."""
    weight_version: int
    """``UNKNOWN_VERSION`` if the engine does not report a number; then nothing may be trained."""
    engine_s: float
    """Seconds at the engine, queueing included; the client's wait if the engine reports none."""
    weight_spans: WeightSpans = ()
    """Versions that sampled the tokens, if the weights were switched meanwhile; the last is
    ``weight_version``.
    """
    routing: NDArray[np.int32] | None = None
    """int32 [rows · layers · top_k]: chosen experts of the positions from ``routing_start`` on.

    rows = prompt + m − 1 − start: the last token was never an input. None if none was sent.
    """
    queue_s: float = 0.0
    """Part of ``engine_s`` before the request ran; 0 if the engine does not report it."""
    reply: TextReply | None = None
    """The answer, if the engine gives texts: then ids and logprobs are empty."""

    @property
    def completion_tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.output_ids) if self.reply is None else self.reply.completion_tokens


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Number of requests at an engine, over all its data-parallel ranks."""

    running: int
    waiting: int

    @property
    def idle(self) -> bool:
        """Return whether there are none."""
        return not self.running and not self.waiting


def session_id_of(rid: str) -> str:
    """Return the session of a call: its request id up to the first colon."""
    return rid.partition(":")[0]


TokenIds = list[int] | IdArray
"""Token ids of a prompt; an array, int32 [n], is not copied on the way to the engine."""


class Engine(Protocol):
    """A running engine, ours or SGLang."""

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample a continuation of ``input_ids``; raises EngineError.

        ``rid`` is the request's id, unique among the requests in flight: ``SESSION:BRANCH:…``.
        Cancelling the call aborts the request at the engine.
        """
        ...

    async def close(self) -> None:
        """Close the client's connections (not the engine)."""
        ...


class ServedEngine(Engine, Protocol):
    """An engine with the calls that new weights need: a drain, and the update itself."""

    async def update_weights(self, path: Path, version: int) -> None:
        """Load safetensors weights from a directory and flush the prefix cache; raises EngineError.

        Generations report ``version`` from then on.
        """
        ...

    async def loads(self) -> EngineLoad:
        """Return the number of requests that run and wait; raises EngineError."""
        ...

    async def abort_all(self) -> None:
        """Abort every request of every client; raises EngineError."""
        ...
