"""Ask the teacher about a step's samples.

Invariant: a rollout whose logprobs the teacher does not give trains nothing; its reward still
counts for its siblings. If it gives none at all, the run ends and can be resumed: its rollouts are
kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conf.errors import error_text
from conf.sections.training import TrainerConfig
from runners.engines.contract import EngineError
from runners.engines.teacher import Teacher
from runners.training.sample import Sample
from runners.training.step_samples import StepSamples, leave_out


async def add_teacher_logprobs(
    step: StepSamples, teacher: Teacher, trainer: TrainerConfig
) -> StepSamples:
    """Return the step with the teacher's logprobs of all trained tokens.

    Rollouts of which it does not give them are left out. Raises EngineError if that are all.
    """
    asked = [samples for samples in step.rollouts if samples]
    answers = await asyncio.gather(*(_ask(samples, teacher) for samples in asked))
    failed = {
        samples[0].rollout_id: f"teacher: {error_text(answer)}"
        for samples, answer in zip(asked, answers, strict=True)
        if isinstance(answer, EngineError)
    }
    errors = [answer for answer in answers if isinstance(answer, EngineError)]
    if errors and len(errors) == len(asked):
        raise EngineError(
            f"the teacher gave no logprobs of any rollout: {errors[0]}; look at the server of "
            "trainer.distill.url, then continue with --resume",
            retryable=errors[0].retryable,
        )
    taught = iter(answers)
    rollouts: list[list[Sample]] = []
    for samples in step.rollouts:
        answer = next(taught) if samples else samples
        rollouts.append(samples if isinstance(answer, EngineError) else answer)
    return leave_out(replace(step, rollouts=rollouts), failed, trainer)


async def _ask(samples: Sequence[Sample], teacher: Teacher) -> list[Sample] | EngineError:
    """Return a rollout's samples with the teacher's logprobs, or why there are none."""
    tasks = [asyncio.create_task(_ask_about(sample, teacher)) for sample in samples]
    try:
        return list(await asyncio.gather(*tasks))
    except EngineError as error:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return error


async def _ask_about(sample: Sample, teacher: Teacher) -> Sample:
    logprobs = np.zeros(len(sample.tokens), np.float32)
    if sample.loss_mask.any():
        start = int(np.argmax(sample.loss_mask))
        logprobs[start:] = await teacher.score(sample.tokens, start)
    return replace(sample, teacher_logprobs=np.where(sample.loss_mask, logprobs, np.float32(0)))
