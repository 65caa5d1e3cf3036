"""Check that a vLLM server can do what an evaluation or a recording needs of it.

Everything is tried, not read from a version.
"""

from __future__ import annotations

import uuid

from runners.engines.contract import EngineError, SamplingParams
from runners.engines.server_check import (
    ANSWERS,
    REQUEST_DEADLINE_S,
    CheckFailed,
    CheckResult,
    no_answer,
    run_check,
)
from runners.engines.vllm.client import VllmEngine

PROMPT = [1, 2, 3, 4]
PROBED_TOKENS = 8
"""No model is certain of eight tokens in a row after ``PROMPT``."""
CERTAIN = 1e-6


async def check_vllm(url: str, *, model: str | None, context_tokens: int) -> list[CheckResult]:
    """Run every check; a server that does not answer gets one result, ``answers``, others none."""
    engine = VllmEngine(url, model=model, deadline_s=REQUEST_DEADLINE_S)
    try:
        answers = await run_check(ANSWERS, lambda: _check_answers(engine))
        if not answers.ok:
            return [answers]
        return [
            await run_check("model", lambda: _check_model(engine, model)),
            await run_check("token ids and logprobs", lambda: _check_tokens(engine)),
            await run_check("logprobs mode", lambda: _check_logprobs_mode(engine)),
            await run_check(
                "context length", lambda: _check_context(engine, model, context_tokens)
            ),
        ]
    finally:
        await engine.close()


async def _check_answers(engine: VllmEngine) -> str:
    try:
        await engine.check_health()
    except EngineError as error:
        raise no_answer(error) from error
    return engine.name


async def _check_model(engine: VllmEngine, model: str | None) -> str:
    names = [str(served.get("id")) for served in await engine.list_models()]
    if not names or (model is not None and model not in names):
        raise CheckFailed(
            f"engine.model={model} is not served; the server has: {', '.join(names) or 'no model'}"
        )
    return model or names[0]


async def _check_tokens(engine: VllmEngine) -> str:
    generation = await engine.generate(PROMPT, SamplingParams(2), rid=_new_rid())
    return f"{len(generation.output_ids)} tokens"


async def _check_logprobs_mode(engine: VllmEngine) -> str:
    """Sample from the likeliest token only, and look at the logprob.

    After top-k 1 every sampled token is certain: a server that reports processed logprobs says 0,
    one that reports raw ones (vLLM's default) says what the model said.
    """
    params = SamplingParams(PROBED_TOKENS, top_k=1)
    generation = await engine.generate(PROMPT, params, rid=_new_rid())
    logprobs = generation.logprobs
    if (logprobs > CERTAIN).any():
        raise CheckFailed(
            "the logprobs are logits: start the server with --logprobs-mode processed_logprobs"
        )
    if (abs(logprobs) < CERTAIN).all():
        return "processed: after temperature, top-p and top-k"
    return "raw: before temperature, top-p and top-k; those of the policy at temperature 1 only"


async def _check_context(engine: VllmEngine, model: str | None, wanted: int) -> str:
    served = await engine.list_models()
    of_model = next((m for m in served if model in (None, m.get("id"))), {})
    limit = of_model.get("max_model_len")
    if not isinstance(limit, int):
        return "the server does not report it"
    if limit < wanted:
        raise CheckFailed(
            f"the server takes {limit} tokens, model.max_context_tokens={wanted}: lower it, or "
            f"start the server with --max-model-len {wanted}"
        )
    return f"{limit:,} tokens"


def _new_rid() -> str:
    return f"probe-{uuid.uuid4().hex}"
