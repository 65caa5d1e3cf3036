"""The client of vLLM's HTTP API: token ids in, token ids out, over ``/v1/completions``.

It follows ``vllm/entrypoints/openai/completion/`` of vLLM's repository at commit 002032ee (2026).
``return_token_ids`` needs vLLM 0.10.2; earlier versions ignore the field.

Invariants: the ids that the server reports as its prompt are those that were sent, and each sampled
id has its logprob; anything else is an EngineError. A generation that is given up ends with its
connection: vLLM aborts a request whose client has left.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy as np

from runners.engines.connection import (
    Connection,
    EngineClient,
    HttpConnection,
    unreadable_error,
)
from runners.engines.contract import EngineError, Generation, SamplingParams, TokenIds
from runners.engines.fixed_weights import FixedWeights
from runners.records.record import UNKNOWN_VERSION

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"
SHORT_DEADLINE_S = 10.0
"""For requests that sample nothing."""

NEUTRAL = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Settings that agentrl does not have. They are sent because vLLM takes the defaults of all
settings from the model's ``generation_config.json``, and many models have other values there.
"""
FINISH_REASONS = ("stop", "length", "abort")


class VllmEngine(EngineClient, FixedWeights):
    """An ``Engine`` behind vLLM's HTTP API."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        deadline_s: float = 600.0,
        connection: Connection | None = None,
    ) -> None:
        """Remember the address, with or without ``/v1``; nothing is opened before the first call.

        ``model`` is the name that the server gives the model; None: the first of its list.
        ``deadline_s`` bounds one generation, queueing included.
        """
        name = url.rstrip("/").removesuffix("/v1")
        super().__init__(name, connection or HttpConnection(name))
        self._deadline_s = deadline_s
        self._model = model
        self._reading_models = asyncio.Lock()

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample a continuation of ``input_ids``; see ``Engine.generate``."""
        body = {
            "model": await self._find_model(),
            "prompt": input_ids,
            "request_id": rid,
            **sampling_body(params),
        }
        began = time.perf_counter()
        answer = await self.request_json(COMPLETIONS, body, deadline_s=self._deadline_s)
        try:
            return _parse_generation(answer, input_ids, time.perf_counter() - began)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise unreadable_error(self.name, COMPLETIONS, error) from error

    async def list_models(self) -> list[dict[str, Any]]:
        """Return the models that it serves (``id``, ``max_model_len``, …); raises EngineError."""
        answer = await self.request_json(MODELS, deadline_s=SHORT_DEADLINE_S)
        models = answer.get("data")
        if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
            raise unreadable_error(self.name, MODELS, TypeError("no list of models"))
        return models

    async def check_health(self) -> None:
        """Return if it answers; raises EngineError with the reason if not."""
        await self.request_bytes("GET", "/health", deadline_s=SHORT_DEADLINE_S)

    async def _find_model(self) -> str:
        async with self._reading_models:
            if self._model is None:
                models = await self.list_models()
                if not models:
                    raise EngineError(f"engine {self.name} serves no model: {MODELS} is empty")
                self._model = str(models[0]["id"])
        return self._model


def sampling_body(params: SamplingParams) -> dict[str, Any]:
    """Return the sampling settings as vLLM takes them."""
    body: dict[str, Any] = {
        **NEUTRAL,
        "max_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "logprobs": 0,  # the sampled token's own
        "return_token_ids": True,
        # ids must be exactly what was sampled: nothing trimmed, skipped or inserted
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
    }
    if params.sampling_seed is not None:
        body["seed"] = params.sampling_seed
    return body


def _parse_generation(answer: dict[str, Any], sent: TokenIds, waited_s: float) -> Generation:
    """Return the generation, whose ids and logprobs belong together.

    Raises ValueError with the reason if they do not, KeyError, TypeError or IndexError for an
    answer of another shape.
    """
    [choice] = answer["choices"]
    ids, received = choice.get("token_ids"), choice.get("prompt_token_ids")
    if ids is None or received is None:
        raise ValueError(
            "it has no token ids, although return_token_ids asks for them: it needs vLLM 0.10.2, "
            "and nothing in between that drops the field"
        )
    if received != (sent if isinstance(sent, list) else sent.tolist()):
        raise ValueError(
            f"the prompt had {len(sent)} ids, and the server saw {len(received)} others: something "
            "in between changes prompts"
        )
    logprobs = choice["logprobs"]["token_logprobs"]
    if len(logprobs) != len(ids):
        raise ValueError(f"{len(ids)} sampled ids come with {len(logprobs)} logprobs")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in logprobs):
        raise ValueError("a sampled id has no logprob")
    if choice["finish_reason"] not in FINISH_REASONS:
        raise ValueError(f"unknown finish_reason {choice['finish_reason']!r}")
    # servers without --enable-prompt-tokens-details send null
    details = answer["usage"].get("prompt_tokens_details") or {}
    return Generation(
        output_ids=np.asarray(ids, dtype=np.int32),
        logprobs=np.asarray(logprobs, dtype=np.float32),
        finish_reason=choice["finish_reason"],
        matched=choice.get("stop_reason"),  # null for the end-of-sequence token
        prompt_tokens=len(sent),
        cached_tokens=details.get("cached_tokens") or 0,
        weight_version=UNKNOWN_VERSION,
        engine_s=waited_s,
    )
