"""What travels between the HTTP side and the scheduler: sampling settings, a request, its result, a
tokenizer.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runners.engines.contract import EngineError
from runners.engines.embedded.model import RoutingArray
from runners.trajectory.record import IdArray, LogprobArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """Checked sampling settings of one request."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy; logprobs are then those of temperature 1."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 is the whole vocabulary."""
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    """Every id that ends the request: stop_token_ids and the model's eos, none under ignore_eos."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """How a request ended."""

    output_ids: IdArray
    """[m]"""
    logprobs: LogprobArray
    """[m] after temperature, before top-p and top-k."""
    finish_reason: dict[str, Any]
    """SGLang's object: {"type": "stop" | "length" | "abort", …}."""
    cached_tokens: int
    weight_version: int
    """The engine's version when the request ended."""
    routing: RoutingArray | None
    """[prompt + output - 1 - start, layers, top-k] where asked for."""
    retractions: int
    """How often the request was taken back from its row."""
    queue_s: float
    total_s: float


@dataclass(slots=True, eq=False)
class Request:
    """One request; after submission only the scheduler's thread touches it."""

    rid: str
    prompt: IdArray
    sampling: Sampling
    routing_start: int | None
    """First position whose routing is wanted, None for no routing."""
    arrived_at: float
    """time.monotonic() at submission."""
    result: Future[Finished] = field(default_factory=Future)
    admitted_at: float | None = None
    cached_tokens: int = 0
    retractions: int = 0
    output_ids: IdArray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    """Sampled before the request was taken back from its row (retraction)."""
    logprobs: LogprobArray = field(default_factory=lambda: np.empty(0, dtype=np.float32))

    @property
    def ids(self) -> IdArray:
        """Everything that must be in the row before the next token can be sampled."""
        return np.concatenate([self.prompt, self.output_ids])

    @property
    def most_tokens(self) -> int:
        """The length the sequence may reach."""
        return len(self.prompt) + self.sampling.max_new_tokens


class Encoded(Protocol):
    """An encoded text."""

    @property
    def ids(self) -> list[int]:
        """Its ids."""
        ...


class TextCodec(Protocol):
    """What the engine needs of a tokenizer."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Encoded:
        """Turn text into ids."""
        ...

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Turn ids into text."""
        ...


def load_tokenizer(directory: Path) -> TextCodec:
    """Read ``tokenizer.json``; raises EngineError when it is missing or broken."""
    from tokenizers import Tokenizer  # imported late: the engine runs without it

    path = directory / "tokenizer.json"
    try:
        return Tokenizer.from_str(path.read_text())
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot load tokenizer {path}: {error}") from error
