"""Weights change under running requests: nobody waits, and each token is its own weights'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from runners.engines.embedded.attention import KvStore
from runners.engines.embedded.model import PackedStep, Qwen3Moe
from runners.engines.embedded.request import Request, RequestResult, RequestSampling
from runners.engines.embedded.scheduler import Scheduler
from runners.engines.embedded.weight_change import MAX_SPANS, MIN_GAIN, SLICE_TOKENS
from runners.engines.embedded.weights import load_weights
from runners.records.record import IdArray

CONTEXT = 1024
Models = tuple["CountingModel", "CountingModel"]


class CountingModel(Qwen3Moe):
    """A model that notes how many tokens and spans each of its steps has."""

    def __init__(self, directory: Path) -> None:
        super().__init__(load_weights(directory), CONTEXT)
        self.steps: list[int] = []
        self.spans: list[int] = []

    def forward(self, step: PackedStep, kv: KvStore) -> tuple[Tensor, NDArray[np.int16]]:
        self.steps.append(len(step.tokens))
        self.spans.append(len(step.spans))
        return super().forward(step, kv)


@pytest.fixture
def models(model_dir: Path, other_model_dir: Path) -> Models:
    return CountingModel(model_dir), CountingModel(other_model_dir)


def schedule(model: Qwen3Moe, rows: int = 16) -> Scheduler:
    return Scheduler(
        model, max_running_requests=rows, cache_tokens=20_000, max_context_tokens=CONTEXT,
        weight_version=0, tokenizer=None,
    )  # fmt: skip


def draw(seed: int, length: int) -> IdArray:
    return np.random.default_rng(seed).integers(0, 800, length).astype(np.int32)


def add(
    scheduler: Scheduler, ids: IdArray, count: int, *, logprob_start: int | None = None
) -> Request:
    sampling = RequestSampling(count, seed=len(ids))
    name = str(scheduler.steps * 1000 + len(scheduler.waiting))
    request = Request(name, ids, sampling, 0, logprob_start, 0.0)
    scheduler.waiting.append(request)
    return request


def start(scheduler: Scheduler, prompts: list[IdArray], count: int) -> list[Request]:
    """Run requests until all of them decode, and some steps more."""
    requests = [add(scheduler, ids, count) for ids in prompts]
    while scheduler.waiting or scheduler.rows.decoding < scheduler.rows.used:
        scheduler.step()
    for _ in range(5):
        scheduler.step()
    return requests


def finish(scheduler: Scheduler) -> None:
    while scheduler.has_work:
        scheduler.step()


def change(scheduler: Scheduler, model: Qwen3Moe, version: int = 1) -> list[int]:
    """Begin to change weights; the list gets the number of running requests at the change."""
    done: list[int] = []
    scheduler.begin_change(model, version, done.append)
    return done


def step_until(scheduler: Scheduler, done: list[int], act: Callable[[int], None]) -> int:
    """Step until weights have changed, and require a token of every decoding row in each step."""
    rows, steps = scheduler.rows, 0
    while not done:
        act(steps)
        before = {r.rid: int(rows.length[i]) for i, r in enumerate(rows.requests[: rows.decoding])}
        scheduler.step()
        for row, request in enumerate(rows.requests[: rows.decoding]):
            assert rows.length[row] == before.get(request.rid, rows.length[row] - 1) + 1
        assert all(r.logprob_start is not None or not len(r.output_ids) for r in scheduler.waiting)
        steps += 1
        assert steps < 500
    return steps


def assert_exact(request: Request, models: Models) -> None:
    """Compare with each model's own logprobs and routing of the whole sequence, bit for bit."""
    result = request.result.result()
    versions, begin = result.weight_versions, len(request.prompt)
    whole = np.concatenate([request.prompt, result.output_ids])
    assert np.array_equal(versions, np.sort(versions))
    assert result.routing is not None
    for version in set(versions.tolist()):
        wanted = score(models[version], whole, begin - 1)
        mine = np.flatnonzero(versions == version)
        assert wanted.input_logprobs is not None
        assert wanted.routing is not None
        assert np.array_equal(result.logprobs[mine], wanted.input_logprobs[1:][mine])
        # a position's row chose the token after it
        assert np.array_equal(result.routing[begin - 1 + mine], wanted.routing[begin - 1 + mine])
        if version == versions[-1]:
            assert np.array_equal(result.routing[: begin - 1], wanted.routing[: begin - 1])


def score(model: Qwen3Moe, ids: IdArray, begin: int) -> RequestResult:
    scheduler = schedule(model)
    request = add(scheduler, ids, 0, logprob_start=begin)
    finish(scheduler)
    return request.result.result()


def test_nobody_waits_and_each_token_has_its_own_weights_logprob_and_routing(
    models: Models,
) -> None:
    scheduler = schedule(models[0])
    shared = draw(0, 100)
    prompts = [np.concatenate([shared, draw(1 + i, 5 + 30 * i)]) for i in range(6)]
    requests = start(scheduler, [*prompts[:5], draw(9, 2)], 120)
    short = add(scheduler, prompts[5], 3)  # ends while weights change: its row moves others
    scored = add(scheduler, draw(10, 90), 30, logprob_start=20)
    scheduler.step()

    def act(step: int) -> None:
        if step == 2:
            requests.append(add(scheduler, draw(11, 70), 60))

    done = change(scheduler, models[1])
    steps = step_until(scheduler, done, act)
    assert done == [8]
    running = scheduler.rows.decoding
    assert max(models[1].steps) <= max(SLICE_TOKENS, MIN_GAIN * 8)
    assert steps > 5
    finish(scheduler)
    for request in [*requests, short, scored]:
        assert_exact(request, models)
    assert running == 7
    spans = [set(request.result.result().weight_versions.tolist()) for request in requests]
    assert spans == [{0, 1}] * 7
    assert [request.result.result().retractions for request in requests] == [0] * 7
    # its prompt's logprobs carry no version, so they are those of one set of weights: the last
    result = scored.result.result()
    wanted = score(models[1], np.concatenate([scored.prompt, result.output_ids]), 20)
    assert result.input_logprobs is not None
    assert wanted.input_logprobs is not None
    assert np.array_equal(result.input_logprobs, wanted.input_logprobs[: len(scored.prompt) - 20])


def test_a_prefix_of_several_rows_is_computed_once_by_the_new_weights(models: Models) -> None:
    scheduler = schedule(models[0])
    shared = draw(0, 300)
    start(scheduler, [np.concatenate([shared, draw(1 + i, 10)]) for i in range(8)], 200)
    step_until(scheduler, change(scheduler, models[1]), lambda step: None)
    assert sum(models[1].steps) < 300 + 8 * 60


@pytest.mark.integration
def test_rows_that_miss_a_few_tokens_are_caught_up_with_together(models: Models) -> None:
    scheduler = schedule(models[0])
    requests = start(scheduler, [draw(1 + i, 40 + 20 * i) for i in range(12)], 200)
    done = change(scheduler, models[1])
    step_until(scheduler, done, lambda step: None)
    assert max(models[1].spans) <= MAX_SPANS
    assert 12 in models[1].steps
    finish(scheduler)
    for request in requests:
        assert_exact(request, models)


def test_prefixes_stay_cached_when_weights_have_changed(models: Models) -> None:
    scheduler = schedule(models[0])
    ended = add(scheduler, draw(3, 500), 12)
    requests = start(scheduler, [draw(1, 150), draw(2, 80)], 40)
    done = change(scheduler, models[1])
    step_until(scheduler, done, lambda step: None)
    assert ended.result.result().weight_version == 0
    finish(scheduler)
    for request in [*requests, ended]:
        ids = np.concatenate([request.prompt, request.result.result().output_ids])
        again = add(scheduler, np.concatenate([ids, draw(4, 10)]), 5)
        finish(scheduler)
        # what ended before the change is cached as far as it was made ready
        kept = 4 * SLICE_TOKENS if request is ended else len(ids) - 1
        assert again.result.result().cached_tokens >= kept
        assert_exact_second(again, models)


def assert_exact_second(request: Request, models: Models) -> None:
    """Require that a request of the changed engine has the new weights' logprobs."""
    result = request.result.result()
    whole = np.concatenate([request.prompt, result.output_ids])
    wanted = score(models[1], whole, len(request.prompt) - 1).input_logprobs
    assert wanted is not None
    assert np.array_equal(result.logprobs, wanted[1:])


def test_a_request_in_the_row_of_one_that_ended_meanwhile_begins_anew(models: Models) -> None:
    scheduler = schedule(models[0])
    add(scheduler, draw(1, 60), 14)
    [long] = start(scheduler, [draw(2, 600)], 60)
    done, late = change(scheduler, models[1]), list[Request]()

    def act(step: int) -> None:
        if scheduler.rows.used == 1 and not late:
            assert scheduler.rows.next_keys is not None
            assert scheduler.rows.next_keys.computed[1] > 0
            late.append(add(scheduler, draw(3, 100), 30))

    step_until(scheduler, done, act)
    finish(scheduler)
    for request in (long, *late):
        assert set(request.result.result().weight_versions.tolist()) == {0, 1}
        assert_exact(request, models)
    assert late


def test_new_weights_come_however_many_prompts_arrive(models: Models) -> None:
    scheduler = schedule(models[0], rows=4)
    start(scheduler, [draw(1, 200)], 800)
    done = change(scheduler, models[1])

    def act(step: int) -> None:
        while len(scheduler.waiting) < 4:
            add(scheduler, draw(1000 + 8 * step + len(scheduler.waiting), 400), 3)

    step_until(scheduler, done, act)
    assert done


def test_without_running_requests_weights_change_at_once(models: Models) -> None:
    scheduler = schedule(models[0])
    done = change(scheduler, models[1])
    scheduler.step()
    assert (done, scheduler.weight_version, scheduler.has_work) == ([0], 1, False)


def test_a_second_change_hastens_the_first(models: Models) -> None:
    scheduler = schedule(models[0])
    requests = start(scheduler, [draw(1, 300), draw(2, 300)], 60)
    first = change(scheduler, models[1])
    scheduler.step()
    second = change(scheduler, models[0], 2)
    assert (first, second, scheduler.weight_version) == ([2], [], 1)
    finish(scheduler)
    assert (len(second), scheduler.weight_version) == (1, 2)
    for request in requests:
        assert request.result.result().retractions == 1
        assert request.result.result().weight_versions[-1] == 2
        assert_exact(request, (*models, models[0]))  # type: ignore[arg-type]


def test_an_abort_of_all_requests_lets_the_weights_change(models: Models) -> None:
    scheduler = schedule(models[0])
    start(scheduler, [draw(1, 300)], 60)
    done = change(scheduler, models[1])
    scheduler.step()
    scheduler.abort(lambda rid: True)
    assert scheduler.has_work
    scheduler.step()
    assert (done, scheduler.weight_version, scheduler.has_work) == ([0], 1, False)
