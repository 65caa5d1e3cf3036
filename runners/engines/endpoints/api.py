"""The interface between the client of endpoints and one vendor's API."""

from __future__ import annotations

from typing import Any, Protocol

from runners.engines.contract import Conversation, Generation, SamplingParams

MODELS = "/v1/models"


class EndpointApi(Protocol):
    """One API: how a request is written, and how its answer is read."""

    @property
    def PATH(self) -> str:
        """Path of the endpoint that takes a conversation."""
        ...

    @property
    def limit_field(self) -> str:
        """Name of the limit on sampled tokens in a request."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request, the key's left out."""
        ...

    def key_headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry a key."""
        ...

    def build_request(self, prompt: Conversation, params: SamplingParams) -> dict[str, Any]:
        """Return the body of a request."""
        ...

    def read_answer(self, answer: dict[str, Any], waited_s: float) -> Generation:
        """Return the generation of an answer.

        Raises KeyError, TypeError, ValueError or IndexError for an answer of another shape.
        """
        ...
