"""Check that an endpoint answers, with the run's model and sampling."""

from __future__ import annotations

import uuid

from conf.schema import Config
from conf.sections.engine import EndpointEngineConfig
from runners.engines.contract import Conversation, EngineError, SamplingParams
from runners.engines.endpoints.client import EndpointEngine
from runners.engines.server_check import (
    ANSWERS,
    CheckFailed,
    CheckResult,
    no_answer,
    run_check,
)

PROBE = Conversation(
    [{"role": "user", "content": "Answer with the one word OK."}],
    [
        {
            "type": "function",
            "function": {
                "name": "read",
                "description": "Read a file.",
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}},
                    "required": ["path"],
                },
            },
        }
    ],
)
"""A short prompt with a tool: servers that take none say so."""
LISTED = 10
"""Names of other models that a refusal shows."""


async def check_endpoint(config: Config, section: EndpointEngineConfig) -> list[CheckResult]:
    """Run every check; an endpoint that does not answer gets one result, ``answers``."""
    engine = EndpointEngine(section, deadline_s=config.rollout.deadlines.turn_s)
    try:
        answers = await run_check(ANSWERS, lambda: _check_answers(engine))
        if not answers.ok:
            return [answers]
        return [
            await run_check("model", lambda: _check_model(engine, section.model), fatal=False),
            await run_check("an answer", lambda: _check_answer(engine, config)),
            CheckResult("token ids", True, "not known: nothing can be trained"),
        ]
    finally:
        await engine.close()


async def _check_answers(engine: EndpointEngine) -> str:
    try:
        await engine.list_models()
    except EngineError as error:
        if error.status is None:  # any other answer is one
            raise no_answer(error) from error
    return engine.name


async def _check_model(engine: EndpointEngine, model: str) -> str:
    try:
        names = await engine.list_models()
    except EngineError:
        return f"{model}, not seen: the endpoint lists no models"
    if model not in names:
        listed = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
        raise CheckFailed(f"engine.model={model} is not listed; listed are: {listed or 'none'}")
    return model


async def _check_answer(engine: EndpointEngine, config: Config) -> str:
    """Ask for one word with the run's sampling and its longest answer, which some models refuse."""
    sampling = config.sampling
    params = SamplingParams(
        sampling.max_new_tokens,
        temperature=sampling.eval_temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        conversation=PROBE,
    )
    found = await engine.generate([], params, rid=f"probe-{uuid.uuid4().hex}")
    return f"{found.prompt_tokens} tokens in, {found.completion_tokens} out"
