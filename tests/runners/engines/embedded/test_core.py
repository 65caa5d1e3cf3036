"""The engine core: every request gets its own right answer, whatever else runs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeForCausalLM

from runners.engines.contract import EngineError, Generation, SamplingParams
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.request import RequestResult, RequestSampling
from runners.engines.embedded.weights import ModelWeights
from runners.records.record import IdArray
from runners.training.routing.replay import RouterReplay
from tests.fakes.tiny_model import write_tiny_model

TOLERANCE = 5e-5
NEAR_TIE = 1e-4
"""Router logits that are as close may be ordered by rounding."""


def prompt(seed: int, length: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, 800, length).tolist()
    return found


def array(ids: list[int]) -> IdArray:
    return np.asarray(ids, dtype=np.int32)


async def until_decoding(core: EngineCore, steps: int = 3) -> None:
    """Return when the engine has made some more steps."""
    target = core.steps + steps
    while core.steps < target:
        await asyncio.sleep(0.001)


def teacher_forced(
    reference: Qwen3MoeForCausalLM, ids: list[int], output: IdArray, temperature: float = 1.0
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Logprobs transformers gives to ``output`` after ``ids``."""
    whole = torch.tensor([[*ids, *output.tolist()]])
    with torch.inference_mode():
        logits = reference(whole).logits[0, len(ids) - 1 : -1] / temperature
    chosen = torch.from_numpy(output.astype(np.int64))[:, None]
    values: np.ndarray[tuple[int], np.dtype[np.float32]] = (
        logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()
    )
    return values


def as_routed(
    reference: Qwen3MoeForCausalLM, ids: list[int], answer: Generation
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], float]:
    """Logprobs transformers gives to an answer, routed as the engine has routed it; and by how much
    the worst expert that only the engine chose fell short of being chosen, in router logits.
    """
    length, layers = len(ids) + len(answer.output_ids), reference.config.num_hidden_layers
    top_k = reference.config.num_experts_per_tok
    assert answer.routing is not None
    experts = torch.zeros(length, layers, top_k, dtype=torch.int64)  # the last token has no row
    experts[:-1] = torch.from_numpy(answer.routing.reshape(length - 1, layers, top_k))
    valid = torch.arange(length) < length - 1
    short = [0.0]

    def compare(layer: int, logits: torch.Tensor) -> None:
        worst_chosen = logits.topk(top_k).values[:, -1:]
        short.append(float((worst_chosen - logits.gather(1, experts[:, layer]))[valid].max()))

    replay = RouterReplay(reference)
    hooks = [
        router.register_forward_hook(lambda _, __, out, layer=layer: compare(layer, out[0]))
        for layer, router in replay.routers.items()
    ]
    try:
        with replay.micro_batch(), replay.forward(experts, valid):
            logprobs = teacher_forced(reference, ids, answer.output_ids)
    finally:
        for hook in hooks:
            hook.remove()
        replay.close()
    return logprobs, max(short)


async def test_greedy_generation_equals_transformers(
    core: EngineCore, reference: Qwen3MoeForCausalLM
) -> None:
    ids = prompt(0, 40)
    ours = await core.generate(ids, SamplingParams(30, temperature=0.0), rid="a")
    with torch.inference_mode():
        theirs = cast(Any, reference).generate(
            torch.tensor([ids]), max_new_tokens=30, do_sample=False, pad_token_id=0
        )
    assert ours.output_ids.tolist() == theirs[0, 40:].tolist()
    assert ours.finish_reason == "length"


async def test_sampled_logprobs_equal_transformers_for_many_requests_at_once(
    core: EngineCore, reference: Qwen3MoeForCausalLM
) -> None:
    prompts = [prompt(seed, 10 + 23 * seed) for seed in range(12)]
    temperatures = [0.6 + 0.1 * index for index in range(12)]
    answers = await asyncio.gather(
        *(
            core.generate(ids, SamplingParams(10 + index, temperature=t), rid=str(index))
            for index, (ids, t) in enumerate(zip(prompts, temperatures, strict=True))
        )
    )
    for index, (ids, temperature, answer) in enumerate(
        zip(prompts, temperatures, answers, strict=True)
    ):
        assert len(answer.output_ids) == 10 + index
        wanted = teacher_forced(reference, ids, answer.output_ids, temperature)
        assert np.abs(answer.logprobs - wanted).max() < TOLERANCE


async def test_a_second_turn_reuses_the_first_and_gives_identical_logprobs(
    core: EngineCore, reference: Qwen3MoeForCausalLM
) -> None:
    ids = prompt(1, 60)
    first = await core.generate(ids, SamplingParams(20), rid="1")
    ids = [*ids, *first.output_ids.tolist(), *prompt(2, 15)]
    second = await core.generate(ids, SamplingParams(20), rid="2")
    # the first turn's last token never went through the model
    assert (first.cached_tokens, second.cached_tokens) == (0, 79)
    wanted = teacher_forced(reference, ids, second.output_ids)
    assert np.abs(second.logprobs - wanted).max() < TOLERANCE


async def test_simultaneous_requests_compute_a_shared_prefix_once(
    core: EngineCore, reference: Qwen3MoeForCausalLM
) -> None:
    shared = prompt(3, 150)
    prompts = [[*shared, *prompt(10 + index, 8)] for index in range(8)]
    answers = await asyncio.gather(
        *(core.generate(ids, SamplingParams(5), rid=str(i)) for i, ids in enumerate(prompts))
    )
    assert sorted(answer.cached_tokens for answer in answers) == [0, *[150] * 7]
    for ids, answer in zip(prompts, answers, strict=True):
        wanted = teacher_forced(reference, ids, answer.output_ids)
        assert np.abs(answer.logprobs - wanted).max() < TOLERANCE


async def test_a_seeded_request_samples_the_same_in_any_batch(core: EngineCore) -> None:
    ids, params = prompt(4, 50), SamplingParams(25, top_p=0.9, sampling_seed=11)
    alone = await core.generate(ids, params, rid="alone")
    assert await core.flush_cache()  # otherwise the prompt would not be computed again
    noise = [
        asyncio.create_task(
            core.generate(prompt(20 + i, 15 + 9 * i), SamplingParams(8 + 3 * i), rid=f"noise{i}")
        )
        for i in range(10)
    ]
    await until_decoding(core)
    together = await core.generate(ids, params, rid="together")
    other_seed = await core.generate(ids, SamplingParams(25, sampling_seed=12), rid="other")
    await asyncio.gather(*noise)
    assert together.cached_tokens == 0
    assert together.output_ids.tolist() == alone.output_ids.tolist()
    assert together.logprobs.tolist() == alone.logprobs.tolist()
    assert other_seed.output_ids.tolist() != alone.output_ids.tolist()


async def test_unseeded_requests_sample_differently(core: EngineCore) -> None:
    one = await core.generate(prompt(5, 20), SamplingParams(20), rid="1")
    two = await core.generate(prompt(5, 20), SamplingParams(20), rid="2")
    assert one.output_ids.tolist() != two.output_ids.tolist()


async def test_every_request_of_a_random_mix_gets_its_own_answer(
    model_dir: Path, reference: Qwen3MoeForCausalLM
) -> None:
    """Few rows and a small cache: queueing, row moves, eviction and aborts all happen."""
    core = EngineCore(model_dir, max_running_requests=5, cache_tokens=900)
    rng = np.random.default_rng(6)
    stems = [prompt(100 + index, 60) for index in range(3)]

    async def one(index: int) -> tuple[list[int], Generation] | None:
        await asyncio.sleep(rng.random() * 0.15)
        ids = [*stems[index % 3][: int(rng.integers(5, 60))], *prompt(200 + index, 10)]
        params = SamplingParams(int(rng.integers(1, 30)), routing_start=0)
        call = core.generate(ids, params, rid=f"r{index}")
        if index % 5:
            return ids, await call
        try:
            await asyncio.wait_for(call, 0.01)
        except TimeoutError:
            return None
        return None

    answers = await asyncio.gather(*(one(index) for index in range(40)))
    load = await core.load()
    await core.close()
    assert (load.running, load.waiting) == (0, 0)
    assert load.cached_tokens <= 900
    complete = [answer for answer in answers if answer is not None]
    assert len(complete) == 32
    for ids, answer in complete:
        wanted, margin = as_routed(reference, ids, answer)
        assert np.abs(answer.logprobs - wanted).max() < TOLERANCE
        # a batch of another size sums in another order: a near-tie may fall otherwise, no more
        assert margin < NEAR_TIE


async def test_a_long_prompt_is_prefilled_in_pieces_while_others_decode(
    core: EngineCore, reference: Qwen3MoeForCausalLM
) -> None:
    decoding = asyncio.create_task(core.generate(prompt(7, 10), SamplingParams(60), rid="short"))
    await until_decoding(core)
    ids = prompt(8, 1500)  # more than one step's share of prompt tokens
    answer = await core.generate(ids, SamplingParams(4), rid="long")
    short = await decoding
    for given, got in ((ids, answer), (prompt(7, 10), short)):
        wanted = teacher_forced(reference, given, got.output_ids)
        assert np.abs(got.logprobs - wanted).max() < TOLERANCE


async def test_requests_beyond_the_limits_wait_in_order(model_dir: Path) -> None:
    core = EngineCore(model_dir, max_running_requests=8, cache_tokens=200)
    running: list[asyncio.Task[Generation]] = [
        asyncio.create_task(core.generate(prompt(index, 20), SamplingParams(50), rid=str(index)))
        for index in range(6)
    ]
    await until_decoding(core)
    load = await core.load()
    assert (load.running, load.waiting) == (2, 4)  # 70 tokens each fit twice into 200
    answers = await asyncio.gather(*running)
    await core.close()
    assert [len(answer.output_ids) for answer in answers] == [50] * 6


# --- endings ----------------------------------------------------------------------------------


async def greedy(core: EngineCore, rid: str, count: int = 12) -> list[int]:
    answer = await core.generate(prompt(9, 30), SamplingParams(count, temperature=0.0), rid=rid)
    ids: list[int] = answer.output_ids.tolist()
    return ids


async def test_a_stop_string_across_tokens_ends_the_request(core: EngineCore) -> None:
    free = await greedy(core, "free", 40)
    assert core.tokenizer is not None
    text = core.tokenizer.decode(free, skip_special_tokens=False)
    stop = text[11:14]
    answer = await core.generate(
        prompt(9, 30), SamplingParams(40, temperature=0.0, stop=("\x00\x00", stop)), rid="stopped"
    )
    got = answer.output_ids.tolist()
    assert (answer.finish_reason, answer.matched) == ("stop", stop)
    assert got == free[: len(got)]
    assert stop in core.tokenizer.decode(got, skip_special_tokens=False)
    assert stop not in core.tokenizer.decode(got[:-1], skip_special_tokens=False)


async def test_max_new_tokens_zero_samples_nothing(core: EngineCore) -> None:
    empty = await core.generate(prompt(10, 30), SamplingParams(0), rid="warm")
    assert (len(empty.output_ids), empty.finish_reason) == (0, "length")
    after = await core.generate(prompt(10, 30), SamplingParams(1), rid="after")
    assert after.cached_tokens == 29


async def test_a_waiting_request_can_be_aborted(model_dir: Path) -> None:
    core = EngineCore(model_dir, max_running_requests=1)
    first = asyncio.create_task(core.run("first", array(prompt(0, 10)), RequestSampling(200)))
    second = asyncio.create_task(core.run("second", array(prompt(1, 10)), RequestSampling(5)))
    await until_decoding(core)
    await core.abort(lambda rid: rid == "second")
    answer = await second
    assert answer.finish_reason["type"] == "abort"
    assert len(answer.output_ids) == 0
    assert (await first).finish_reason == {"type": "length", "length": 200}
    await core.close()


async def test_cancelling_a_call_frees_its_row(core: EngineCore) -> None:
    call = asyncio.create_task(core.generate(prompt(0, 10), SamplingParams(1000), rid="gone"))
    await until_decoding(core)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await core.load()).running == 0
    await core.generate(prompt(0, 10), SamplingParams(1), rid="gone")


# --- routing ----------------------------------------------------------------------------------


async def test_routing_covers_cached_and_sampled_positions(
    core: EngineCore, reference: Qwen3MoeForCausalLM
) -> None:
    ids = prompt(11, 70)
    await core.generate(ids, SamplingParams(1), rid="warm")

    async def routed(start: int) -> RequestResult:
        sampling = RequestSampling(9, temperature=0.0)
        return await core.run(f"from{start}", array(ids), sampling, routing_start=start)

    answer = await routed(0)
    assert answer.cached_tokens == 69
    assert answer.routing is not None
    whole = torch.tensor([[*ids, *answer.output_ids.tolist()]])
    with torch.inference_mode():
        logits = reference(whole, output_router_logits=True).router_logits
    wanted = np.stack([layer.topk(2, dim=-1).indices.numpy() for layer in logits], axis=1)
    assert np.array_equal(answer.routing, wanted[:-1])  # the last token is never computed
    for start in (69, 70):
        part = (await routed(start)).routing
        assert part is not None
        assert np.array_equal(part, wanted[start:-1])


# --- weights and pausing ----------------------------------------------------------------------


async def test_weights_are_switched_between_two_steps(
    core: EngineCore, other_model_dir: Path
) -> None:
    ids, params = prompt(12, 40), SamplingParams(10, temperature=0.0)
    before = await core.generate(ids, params, rid="before")
    running = asyncio.create_task(
        core.generate(prompt(13, 40), SamplingParams(400, temperature=0.0), rid="running")
    )
    await until_decoding(core)
    await core.update_weights(other_model_dir, 5)
    after = await core.generate(ids, params, rid="after")
    continued = await running
    fresh = EngineCore(other_model_dir)
    wanted = await fresh.generate(ids, params, rid="fresh")
    await fresh.close()
    assert (before.weight_version, after.weight_version) == (0, 5)
    assert after.cached_tokens == 0
    assert after.output_ids.tolist() == wanted.output_ids.tolist()
    assert after.output_ids.tolist() != before.output_ids.tolist()
    assert (len(continued.output_ids), continued.weight_version) == (400, 5)


async def test_tokens_keep_their_versions_when_a_retracted_request_comes_back_in_another_row(
    core: EngineCore, model_dir: Path, other_model_dir: Path
) -> None:
    first = asyncio.create_task(core.run("first", array(prompt(15, 20)), RequestSampling(1000)))
    await until_decoding(core, 20)
    await core.update_weights(other_model_dir, 3)
    second = asyncio.create_task(core.run("second", array(prompt(16, 20)), RequestSampling(600)))
    await until_decoding(core, 30)
    await core.pause("retract")
    await core.abort(lambda rid: rid == "first")
    await core.update_weights(model_dir, 4)
    await core.resume()
    versions = (await second).weight_versions.tolist()
    count = versions.count(3)
    assert 0 < count < 600
    assert versions == [3] * count + [4] * (600 - count)
    assert set((await first).weight_versions.tolist()) == {0, 3}
    assert (await second).weight_version == 4


async def test_a_planned_request_waits_for_the_weights_of_its_next_token(
    core: EngineCore, other_model_dir: Path
) -> None:
    plan = np.array([0] * 5 + [2] * 4 + [3], np.int32)
    planned = asyncio.create_task(
        core.run("planned", array(prompt(17, 20)), RequestSampling(10), plan=plan)
    )
    free = await core.run("free", array(prompt(17, 20)), RequestSampling(10, seed=1))
    while (await core.load()).planned_tokens.get(0, 0) < 5:
        await asyncio.sleep(0.002)
    assert (free.weight_version, (await core.load()).waiting) == (0, 1), "and holds up no other"
    steps = core.steps
    await asyncio.sleep(0.05)
    assert core.steps == steps, "nothing is computed for a request that waits"
    for version in (1, 2, 3):
        await core.pause("retract")
        await core.update_weights(other_model_dir, version)
        await core.resume()
        if version < 3:
            await asyncio.sleep(0.1)
            assert (await core.load()).planned_tokens.get(version, 0) == (version == 2) * 4
    assert (await planned).weight_versions.tolist() == plan.tolist()


class SlowDisk(EngineCore):
    """An engine whose later weights are read only once ``read`` is set."""

    read: threading.Event | None = None

    def _load(self, directory: Path) -> ModelWeights:
        if self.read is not None:
            self.read.wait(60)
        return super()._load(directory)


async def test_tokens_are_sampled_while_weights_are_loaded_and_have_their_weights_logprobs(
    model_dir: Path, other_model_dir: Path
) -> None:
    engine, others = SlowDisk(model_dir), EngineCore(other_model_dir)
    engine.read = threading.Event()
    ids = prompt(18, 40)
    try:
        running = asyncio.create_task(engine.generate(ids, SamplingParams(800), rid="running"))
        await until_decoding(engine)
        switching = asyncio.create_task(engine.switch_weights(other_model_dir, 1, retract=True))
        for _ in range(2):  # the second time the load has surely begun
            steps = engine.steps
            while engine.steps < steps + 20:
                await asyncio.sleep(0.001)
            assert engine.weight_version == 0
        engine.read.set()
        assert await switching == 1
        done = await running
        assert done.weight_spans is not None
        (first, old), (second, _) = done.weight_spans
        assert (first, second) == (0, 1)
        assert 40 <= old < 800
        # the new weights' logprobs on exactly this prefix: no key of the old ones is left
        whole = np.concatenate([ids, done.output_ids]).astype(np.int32)
        scored = await others.run(
            "scored", whole, RequestSampling(0), logprob_start=len(ids) + old - 1
        )
        assert scored.input_logprobs is not None
        assert np.array_equal(scored.input_logprobs[1:], done.logprobs[old:])
    finally:
        await engine.close()
        await others.close()


async def test_weights_change_in_a_pause_although_no_step_makes_them_ready(
    core: EngineCore, other_model_dir: Path
) -> None:
    running = asyncio.create_task(core.run("r", array(prompt(20, 400)), RequestSampling(300)))
    while (await core.load()).generated_tokens < 5:
        await asyncio.sleep(0.002)
    await core.pause("in_place")
    assert await core.switch_weights(other_model_dir, 1, retract=True) == 1
    assert core.weight_version == 1
    await core.resume()
    versions = (await running).weight_versions.tolist()
    assert (versions[0], versions[-1]) == (0, 1)


async def test_weights_that_cannot_be_loaded_in_flight_change_nothing(
    core: EngineCore, tmp_path: Path
) -> None:
    running = asyncio.create_task(core.run("running", array(prompt(19, 20)), RequestSampling(60)))
    await until_decoding(core)
    with pytest.raises(EngineError, match=r"config\.json"):
        await core.switch_weights(tmp_path, 1, retract=True)
    done = await running
    assert (set(done.weight_versions.tolist()), done.retractions) == ({0}, 0)


async def test_rows_and_cache_together_stay_within_the_memory_and_evicted_prefixes_are_exact(
    model_dir: Path,
) -> None:
    """Six sessions of two turns, and two sub-agents that fork from each, in a cache for two."""
    small, large = EngineCore(model_dir, cache_tokens=700), EngineCore(model_dir)

    async def play(engine: EngineCore, session: int) -> list[float]:
        ids, found = prompt(20 + session, 150), []
        for turn, added in enumerate((0, 20)):
            ids = [*ids, *prompt(40 + session, added)]
            answer = await engine.generate(
                ids, SamplingParams(12, sampling_seed=session), rid=f"{session}-{turn}"
            )
            ids = [*ids, *answer.output_ids.tolist()]
            found += answer.logprobs.tolist()
        for fork in range(2):
            own = [*ids[:170], *prompt(60 + fork, 15)]
            answer = await engine.generate(
                own, SamplingParams(5, sampling_seed=fork), rid=f"{session}-fork{fork}"
            )
            if engine is large:
                assert answer.cached_tokens == 170
            found += answer.logprobs.tolist()
        return found

    async def watch(engine: EngineCore) -> None:
        while True:
            load = await engine.load()
            assert load.used_tokens + load.cached_tokens <= 700
            await asyncio.sleep(0)

    try:
        watching = asyncio.create_task(watch(small))
        ours, wanted = [
            await asyncio.gather(*(play(engine, session) for session in range(6)))
            for engine in (small, large)
        ]
        assert not watching.done(), watching
        watching.cancel()
        assert ours == wanted
    finally:
        await small.close()
        await large.close()


async def test_a_model_of_another_shape_is_refused(core: EngineCore, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="another shape"):
        await core.update_weights(write_tiny_model(tmp_path, num_hidden_layers=1), 1)


async def test_a_retracted_request_continues_where_it_was(core: EngineCore) -> None:
    params = SamplingParams(60, sampling_seed=3)
    alone = await core.generate(prompt(15, 30), params, rid="alone")
    call = asyncio.create_task(core.run("r", array(prompt(15, 30)), RequestSampling(60, seed=3)))
    await until_decoding(core)
    await core.pause("retract")
    load = await core.load()
    assert (load.running, load.waiting) == (0, 1)
    assert await core.flush_cache()
    await core.resume()
    again = await call
    assert again.output_ids.tolist() == alone.output_ids.tolist()
    assert np.abs(again.logprobs - alone.logprobs).max() < TOLERANCE
    assert again.retractions == 1


# --- refusals ---------------------------------------------------------------------------------


async def test_a_prompt_may_fill_the_context_exactly(core: EngineCore) -> None:
    answer = await core.generate([1] * 2040, SamplingParams(8), rid="full")
    assert len(answer.output_ids) == 8


async def test_a_request_that_can_never_fit_the_cache_is_refused(model_dir: Path) -> None:
    core = EngineCore(model_dir, cache_tokens=100)
    with pytest.raises(EngineError, match="cache_tokens=100"):
        await core.generate([1] * 50, SamplingParams(51), rid="x")
    await core.close()


async def test_stop_strings_need_a_tokenizer(model_dir: Path) -> None:
    core = EngineCore(model_dir)
    with pytest.raises(EngineError, match="without a tokenizer"):
        await core.generate([1], SamplingParams(1, stop=("x",)), rid="x")
    await core.close()


async def test_a_context_longer_than_the_model_is_refused(model_dir: Path) -> None:
    with pytest.raises(EngineError, match="max_position_embeddings=4096"):
        EngineCore(model_dir, max_context_tokens=4097)


async def test_closing_the_engine_fails_every_request(model_dir: Path) -> None:
    core = EngineCore(model_dir)
    call = asyncio.create_task(core.generate(prompt(0, 10), SamplingParams(1000), rid="a"))
    await until_decoding(core)
    await core.close()
    with pytest.raises(EngineError, match="has stopped"):
        await call
    with pytest.raises(EngineError, match="has stopped"):
        await core.generate([1], SamplingParams(1), rid="b")
    assert not await core.healthy()


async def test_a_worker_that_dies_fails_every_request(core: EngineCore) -> None:
    call = asyncio.create_task(core.generate(prompt(0, 10), SamplingParams(1000), rid="a"))
    await until_decoding(core)

    def broken(rid: str) -> bool:
        raise RuntimeError("boom")

    with pytest.raises(EngineError, match="boom"):
        await core.abort(broken)
    with pytest.raises(EngineError, match="boom"):
        await call
    assert not await core.healthy()
