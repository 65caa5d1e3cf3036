"""Data between the HTTP side and the scheduler: sampling settings, a request, its result."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runners.engines.contract import EngineError
from runners.engines.embedded.model import RoutingArray
from runners.records.record import IdArray, LogprobArray


@dataclass(frozen=True, slots=True)
class RequestSampling:
    """Checked sampling settings of one request."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy; the logprobs are then those of temperature 1."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 keeps the whole vocabulary."""
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    """Ids that end the request: stop_token_ids and the model's eos; empty under ignore_eos."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of a request."""

    output_ids: IdArray
    """int32 [m], stop token included."""
    logprobs: LogprobArray
    """float32 [m], of the distribution after temperature, before top-p and top-k."""
    finish_reason: dict[str, Any]
    """SGLang's object: {"type": "stop" | "length" | "abort", …}."""
    cached_tokens: int
    weight_version: int
    """That of the last token; without any, the engine's when the request ended."""
    weight_versions: NDArray[np.int32]
    """int32 [m]: version of the weights that sampled each token."""
    routing: RoutingArray | None
    """int16 [prompt + output - 1 - start, layers, top_k]; None unless asked for. A row that sampled
    a token is that token's weights'.
    """
    input_logprobs: LogprobArray | None
    """float32 [prompt - logprob_start] of the prompt's tokens, at temperature 1, the first of them
    0.0; None unless asked for, or if the request was aborted.
    """
    retractions: int
    """Times that the request was put back into the queue."""
    queue_s: float
    total_s: float


@dataclass(slots=True, eq=False)
class Request:
    """One request; after its submission only the scheduler's thread touches it."""

    rid: str
    prompt: IdArray
    sampling: RequestSampling
    routing_start: int | None
    """First position whose routing is wanted, None for no routing."""
    logprob_start: int | None
    """First position whose logprobs are wanted, None for none of the prompt's."""
    arrived_at: float
    """``time.monotonic()`` of its submission."""
    result: Future[RequestResult] = field(default_factory=Future)
    admitted_at: float | None = None
    cached_tokens: int = 0
    retractions: int = 0
    output_ids: IdArray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    """Sampled before the request was put back into the queue (retraction)."""
    logprobs: LogprobArray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    weight_versions: IdArray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    plan: IdArray | None = None
    """Version of the weights that each token is to be sampled with, int32 [m > 0]; None: any."""
    routing: RoutingArray | None = None
    """The rows that sampled these tokens, int16 [output, layers, top_k]: computed again after the
    retraction, they may be those of other weights.
    """

    @property
    def ids(self) -> IdArray:
        """Return the tokens that the row needs before the next one is sampled, int32 [n]."""
        return np.concatenate([self.prompt, self.output_ids])

    def waits_for_weights(self, sampled: int, version: int) -> bool:
        """Return whether its next token, after so many, is to have newer weights than these."""
        return self.plan is not None and bool(self.plan[min(sampled, len(self.plan) - 1)] > version)

    @property
    def max_tokens(self) -> int:
        """Return the greatest length that the sequence may reach."""
        return len(self.prompt) + self.sampling.max_new_tokens


class EncodedText(Protocol):
    """An encoded text."""

    @property
    def ids(self) -> list[int]:
        """Return its ids."""
        ...


class EngineTokenizer(Protocol):
    """The part of a ``tokenizers.Tokenizer`` that the engine uses."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> EncodedText:
        """Encode text as ids."""
        ...

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Decode ids as text."""
        ...


def load_tokenizer(directory: Path) -> EngineTokenizer:
    """Read ``tokenizer.json``; raises EngineError if it is missing or broken."""
    from tokenizers import Tokenizer  # imported late: the engine runs without it

    path = directory / "tokenizer.json"
    try:
        return Tokenizer.from_str(path.read_text())
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot load tokenizer {path}: {error}") from error
