"""Ask the teacher about a step's samples: a second policy behind SGLang's API, which says how
likely it finds tokens that others sampled.

Invariants: logprobs are those of exactly the ids that were given, at temperature 1. A rollout whose
logprobs the teacher does not give trains nothing; its reward still counts for its siblings. If it
gives none at all, the run ends and can be resumed: its rollouts are kept.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conf.errors import error_text
from conf.sections.section import TEACHER_KEY
from conf.sections.training import TrainerConfig
from runners.engines.client import HttpEngine
from runners.engines.connection import HttpConnection, unreadable_error
from runners.engines.contract import EngineError
from runners.records.record import IdArray, LogprobArray
from runners.system.concurrency import backoff_s
from runners.training.sample import Sample
from runners.training.step_samples import StepSamples, leave_out

CONCURRENCY = 16
"""Requests at the teacher at once: each is one prefill, and more of them only wait there."""


class Teacher:
    """A client of one teacher; all calls come from one event loop."""

    def __init__(self, url: str, *, deadline_s: float) -> None:
        """``deadline_s``: for one sequence, from when it is sent first, retries included."""
        connection = HttpConnection(url, key_variable=TEACHER_KEY)
        self.engine = HttpEngine(url, deadline_s=deadline_s, connection=connection)
        self._deadline_s = deadline_s
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def score(self, ids: IdArray, start: int) -> LogprobArray:
        """Return the logprob of each token from ``start`` on, given all before it, float32
        [n - start], retrying what is retryable; raises EngineError.

        ``ids``: int32 [n], ``start`` ≥ 1: nothing predicts the first token.
        """
        clock = asyncio.get_running_loop().time
        async with self._slots:
            ends, failures = clock() + self._deadline_s, 0
            while True:
                try:
                    return await self._ask(ids, start, ends - clock())
                except EngineError as error:
                    failures += 1
                    pause = error.retry_after_s + backoff_s(failures)
                    if not error.retryable or clock() + pause >= ends:
                        raise
                await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the connections."""
        await self.engine.close()

    async def _ask(self, ids: IdArray, start: int, left_s: float) -> LogprobArray:
        body = {
            "rid": f"teacher-{uuid.uuid4().hex}",
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start - 1,  # the first one there is null
        }
        answer = await self.engine.request_json("/generate", body, deadline_s=left_s)
        try:
            if answer["meta_info"]["finish_reason"]["type"] == "abort":
                raise EngineError(f"teacher {self.engine.name}: aborted", retryable=True)
            items = answer["meta_info"]["input_token_logprobs"][1:]
            found = np.array([float(item[0]) for item in items], np.float32)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise unreadable_error(self.engine.name, "/generate", error) from error
        if len(found) != len(ids) - start:
            raise EngineError(
                f"teacher {self.engine.name}: {len(found)} logprobs for {len(ids) - start} tokens; "
                "it has to be an SGLang server that takes logprob_start_len"
            )
        if not all(map(math.isfinite, found)):
            raise EngineError(f"teacher {self.engine.name}: a token's logprob is not finite")
        return found


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
