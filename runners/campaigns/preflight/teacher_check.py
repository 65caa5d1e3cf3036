"""Check that a teacher reads the policy's tokens, has room for its sequences, and scores them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from conf.schema import Config
from conf.sections.training import LocalTrainerConfig
from runners.campaigns.teaching import Teacher
from runners.engines.capabilities import check_context
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError
from runners.engines.server_check import (
    REQUEST_DEADLINE_S,
    CheckFailed,
    CheckResult,
    EngineUnfit,
    no_answer,
    run_check,
)
from runners.records.tokenizer import load_tokenizer

KEY = "trainer.distill.url"
TEXT = (
    "<|im_start|>user\nnaïve  café\t日本 🙂\n\n<x> 1234567<|im_end|>\n<|im_start|>assistant\n"
    "def f():\n    return 1\n<tool_call>"
)
"""Accents, spaces, tabs, CJK, emoji, digits and special tokens: tokenizers disagree on them."""


async def require_teacher(config: Config, tokenizer: Path | None) -> None:
    """Return if the run has no teacher, or one that fits; ``tokenizer``: the policy's, if it is
    there.

    Raises EngineError if the teacher does not answer, EngineUnfit for what does not fit.
    """
    trainer = config.trainer
    if not isinstance(trainer, LocalTrainerConfig) or trainer.distill.url is None:
        return
    teacher = Teacher(trainer.distill.url, deadline_s=REQUEST_DEADLINE_S)
    try:
        results = await _check(teacher, config, tokenizer)
    finally:
        await teacher.close()
    if not results[0].ok:
        raise EngineError(f"teacher: {results[0].detail}", retryable=True, unreachable=True)
    if failures := [f"teacher: {r.name}: {r.detail}" for r in results if not r.ok]:
        raise EngineUnfit("\n".join(failures))


async def _check(teacher: Teacher, config: Config, tokenizer: Path | None) -> list[CheckResult]:
    answers = await run_check("answers", partial(_check_answers, teacher.engine))
    if not answers.ok:
        return [answers]
    # the server wants room for one more token, although none is sampled
    wanted = config.model.max_context_tokens + 1
    results = [answers, await run_check("context", partial(check_context, teacher.engine, wanted))]
    ids = [1, 2, 3]
    if tokenizer is not None and (tokenizer / "tokenizer.json").is_file():
        ids = load_tokenizer(tokenizer).encode(TEXT)
        check = partial(_check_tokenizer, teacher.engine, ids)
        results.append(await run_check("tokenizer", check))
    results.append(await run_check("scores", partial(_check_scores, teacher, ids)))
    return results


async def _check_answers(engine: HttpEngine) -> str:
    try:
        await engine.check_health()
    except EngineError as error:
        raise no_answer(error, KEY) from error
    return engine.name


async def _check_tokenizer(engine: HttpEngine, ids: list[int]) -> str:
    body = {"prompt": TEXT, "add_special_tokens": False}
    answer = await engine.request_json("/tokenize", body, deadline_s=REQUEST_DEADLINE_S)
    if answer.get("tokens") != ids:
        raise CheckFailed(
            f"a text has other ids there: {KEY} has to be a model with the policy's tokenizer"
        )
    return f"{len(ids)} ids of a text are the same"


async def _check_scores(teacher: Teacher, ids: list[int]) -> str:
    found = await teacher.score(np.array(ids, np.int32), 1)
    if float(found.max()) > 1e-4:
        raise CheckFailed(f"a logprob of {float(found.max()):g} is no logprob")
    return f"{len(found)} logprobs, {float(found.mean()):.2f} on average"
