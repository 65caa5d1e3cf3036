"""Routing from the engine's answer to the gradient, over the real store, batch and trainer: the
bugs that others had on this way, by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conf.compose import compose
from conf.schema import Config
from runners.campaigns.slime.placeholder import constant_placeholder
from runners.engines.contract import SamplingParams
from runners.engines.embedded.core import EngineCore
from runners.records.graph import TurnGraph, build_segments
from runners.records.record import RolloutRecord, Segment
from runners.records.routing import (
    Routing,
    RoutingError,
    RoutingShape,
    build_segment_routing,
    build_turn_routing,
)
from runners.records.store.run_store import RunStore
from runners.training.advantages import StepGroups
from runners.training.micro_batches import make_micro_batches
from runners.training.routing.shape import read_routing_shape
from runners.training.sample import Sample
from runners.training.step_samples import StepSamples, StoredRollout, build_samples, fan_out
from tests.fakes.local_trainer import VOCAB, make_trainer
from tests.fakes.records import CONFIG, LOST, a_rollout, a_turn, branched_turns
from tests.fakes.routing_replay import corrupt, r3
from tests.fakes.tiny_model import write_tiny_model

TURNS, NEW, SAMPLED = 3, 6, 12
CONFIGS = {kind: compose(["routing_replay=rollout", f"routing_replay.on_fault={kind}"])
           for kind in ("stop", "mask")}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def shape(weights: Path) -> RoutingShape:
    """Its routing's."""
    found = read_routing_shape(weights)
    assert found is not None
    return found


async def play(
    engine: EngineCore, store: RunStore, shape: RoutingShape, record: RolloutRecord, lost: Set[int]
) -> None:
    """Take a rollout's turns; the rows of ``lost`` ones are dropped after they came."""
    rng = np.random.default_rng(record.member)
    store.add_session(record.session_id, {})
    path = np.zeros(0, np.int32)
    held = 0
    for index in range(TURNS):
        news = rng.integers(0, VOCAB, NEW).astype(np.int32)
        prompt = np.concatenate([path, news])
        params = SamplingParams(
            max_new_tokens=SAMPLED, temperature=0.7, sampling_seed=7 * record.member + index,
            routing_start=held,
        )  # fmt: skip
        answer = await engine.generate(prompt.tolist(), params, rid=f"{record.rollout_id}:{index}")
        turn = a_turn(
            record.session_id, index, prompt_kept=len(path), prompt_new=news,
            output_ids=answer.output_ids, output_logprobs=answer.logprobs,
            weight_version=answer.weight_version,
        )  # fmt: skip
        path = np.concatenate([prompt, answer.output_ids])
        assert answer.routing is not None
        rows = build_turn_routing(answer.routing, path, held, shape, answer.weight_version)
        held = len(path) - 1
        store.add_turn(turn, None if index in lost else rows)
    store.put_rollout(record)


def played(
    weights: Path,
    shape: RoutingShape,
    run_dir: Path,
    lost: Mapping[int, Set[int]] | None = None,
    config: Config = CONFIGS["stop"],
    swap: bool = False,
) -> StepSamples:
    """Return the batch of a group: four rollouts with rewards 1, 0, 1, 0 and one whose sandbox was
    lost before its first turn. ``swap``: the first two rollouts have each other's routing.
    """
    records = [
        a_rollout(f"train-000001-00-{member:02}", reward=float(member % 2 == 0), advantage=None)
        for member in range(4)
    ]
    failed = a_rollout("train-000001-00-04", outcome=LOST, reward=None, solved=None, turns=0)

    async def run(store: RunStore) -> None:
        engine = EngineCore(weights)
        for record in records:
            await play(engine, store, shape, record, (lost or {}).get(record.member, frozenset()))
        await engine.close()

    with RunStore.create(run_dir, CONFIG) as store:
        asyncio.run(run(store))
        store.add_session(failed.session_id, {})
        others = {records[0].session_id: records[1].session_id} if swap else {}

        def load(record: RolloutRecord) -> StoredRollout:
            turns = store.turns(record.session_id)
            captured = store.routing(others.get(record.session_id, record.session_id))

            def routing(segment: Segment) -> Routing:
                return build_segment_routing(segment, captured, shape)

            return StoredRollout(record, turns, build_segments(turns), routing)

        return build_samples(StepGroups(config, [*records, failed]), load, config)


def test_rows_that_were_fetched_reach_the_gradient(
    weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    """Fetched-and-dropped: the rows came with every answer, and training never saw them."""
    batch = played(weights, shape, tmp_path / "run")
    metrics = make_trainer(weights, routing=r3()).step(batch.rollouts)
    assert metrics["r3/captured"] == metrics["r3/replayed"] == 1.0
    assert metrics["r3/disagree_slot"] == 0.0
    assert metrics["r3/k3"] < 1e-10


def test_a_run_whose_rows_are_dropped_on_the_way_stops_and_says_so(
    weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    everything = dict.fromkeys(range(4), frozenset(range(TURNS)))
    batch = played(weights, shape, tmp_path / "run", everything)
    with pytest.raises(RoutingError, match="not one token of 4 samples came with its routing"):
        make_trainer(weights, routing=r3()).step(batch.rollouts)
    metrics = make_trainer(weights, routing=r3(on_fault="mask")).step(batch.rollouts)
    assert metrics["r3/captured"] == metrics["r3/replayed"] == 0.0


def test_missing_rows_of_turns_and_samples_do_not_shift_others(
    weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    """The misaligned list: rows were collected where there were any, and dealt out by number."""
    lost = {0: {1}, 2: set(range(TURNS))}
    batch = played(weights, shape, tmp_path / "run", lost)
    metrics = make_trainer(weights, routing=r3()).step(batch.rollouts)
    length = TURNS * (NEW + SAMPLED)
    gaps = NEW + SAMPLED + length - 1
    assert metrics["r3/invalid_rows"] == gaps
    assert metrics["r3/captured"] == pytest.approx(1 - gaps / (4 * (length - 1)))
    assert metrics["r3/disagree_slot"] == 0.0
    assert metrics["r3/k3"] < 1e-10


def test_rows_of_another_rollout_stop_the_run_or_mask_the_rollout(
    weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    with pytest.raises(RoutingError, match="turn 0 of session train-000001-00-00-a0 belongs to"):
        played(weights, shape, tmp_path / "run", swap=True)
    batch = played(weights, shape, tmp_path / "again", config=CONFIGS["mask"], swap=True)
    assert list(batch.unbuilt) == ["train-000001-00-00"]
    metrics = make_trainer(weights, routing=r3(on_fault="mask")).step(batch.rollouts)
    assert metrics["r3/captured"] == 1.0
    assert metrics["r3/disagree_slot"] == 0.0


def test_a_failed_sample_beside_normal_ones_has_rows_that_a_dispatcher_takes_and_no_weight(
    weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    """Its routing was missing, or zeros: the whole batch could not be put together."""
    batch = played(weights, shape, tmp_path / "run")
    placeholder = constant_placeholder("failed", 0, shape)
    assert placeholder.routing is not None
    assert (np.diff(np.sort(placeholder.routing.experts, axis=-1), axis=-1) > 0).all()
    without = make_trainer(weights, routing=r3())
    beside = make_trainer(weights, routing=r3())
    metrics = beside.step([*batch.rollouts, [placeholder]])
    assert metrics["r3/disagree_slot"] == 0.0
    assert without.step(batch.rollouts)["policy/grad_norm"] == pytest.approx(
        metrics["policy/grad_norm"] * 5 / 4, rel=1e-4
    ), "it counts as a rollout of the average, and adds nothing to it"


def untouched(batch: StepSamples, index: int) -> list[list[Sample]]:
    """Return the batch with one sample's routing taken away: None among others."""
    found = [list(samples) for samples in batch.rollouts]
    found[index] = [replace(found[index][0], routing=None)]
    return found


@pytest.mark.parametrize("tokens", [8, 4096])
def test_a_sample_without_routing_is_routed_natively_whatever_its_micro_batch(
    tokens: int, weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    """``None`` mixed into a batch, and state that leaks from one micro-batch into the next."""
    batch = played(weights, shape, tmp_path / "run")
    for index in range(4):
        trainer = make_trainer(weights, routing=r3(), tokens_per_microbatch=tokens)
        metrics = trainer.step(untouched(batch, index))
        assert metrics["r3/captured"] == metrics["r3/replayed"] == 0.75
        assert metrics["r3/k3"] < 1e-10


def test_backward_with_recomputed_activations_replays_what_forward_replayed(
    weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    """The forward hook in backward: recomputation fell back to the router's own choice, or took
    the next micro-batch's.
    """
    batch = played(weights, shape, tmp_path / "run")
    # other experts than the routers would choose: native routing in backward would show
    rollouts = [[corrupt("random", samples[0], samples[0])] for samples in batch.rollouts]
    found = []
    for recompute in (False, True):
        trainer = make_trainer(
            weights,
            routing=r3(alarm_disagreement=1.0, shadow_every=0),
            tokens_per_microbatch=8,
            recompute=recompute,
        )
        metrics = trainer.step(rollouts)
        found.append((metrics["policy/grad_norm"], metrics["r3/gate_grad_norm"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("tokens", [60, 4096])
def test_padding_and_packing_keep_rows_with_their_tokens(
    tree: bool, tokens: int, weights: Path, shape: RoutingShape, tmp_path: Path
) -> None:
    """Samples of several lengths, in any order: what is padding or unknown is never replayed."""
    batch = played(weights, shape, tmp_path / "run", {1: {2}})
    samples = [sample for rollout in batch.rollouts for sample in rollout]
    cut = [
        replace(
            sample,
            tokens=sample.tokens[:-keep],
            loss_mask=sample.loss_mask[:-keep],
            logprobs=sample.logprobs[:-keep],
            routing=sample.routing
            and Routing(sample.routing.experts[:-keep], sample.routing.valid[:-keep]),
        )
        for keep, sample in zip((1, 5, 9, 3), samples, strict=True)
    ]
    seen: set[int] = set()
    weights_of = [1.0] * len(cut)
    device = torch.device("cpu")
    for part in make_micro_batches(
        cut, weights_of, tokens_per_microbatch=tokens, device=device, tree=tree
    ):
        assert part.experts is not None
        assert part.routed is not None
        for index, path in zip(part.samples, part.paths, strict=True):
            own = cut[index].routing
            assert own is not None
            routed = part.routed[path].numpy()
            assert np.array_equal(routed, own.valid[: len(path)])
            experts = part.experts[path].numpy()
            assert np.array_equal(experts[routed], own.experts[: len(path)][routed])
            seen.add(index)
        padding = np.setdiff1d(np.arange(part.input_ids.numel()), np.concatenate(part.paths))
        assert not part.routed[padding].any()
        assert (len(padding) > 0) <= (not tree)
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("fanout", ["segments", "collapse"])
def test_each_sample_has_the_rows_of_its_own_segment(fanout: str, shape: RoutingShape) -> None:
    """Turns that several chains share, and a chain that is left out, move nobody's rows."""
    turns = branched_turns()
    graph = TurnGraph(turns)
    held = {}
    for turn in turns:
        path = graph.nodes[turn.index].tokens()
        start = 0 if turn.parent is None else graph.nodes[turn.parent].length - 1
        rng = np.random.default_rng(turn.index)
        size = (len(path) - 1 - start, shape.layers, shape.experts)
        flat = rng.random(size).argsort(-1)[..., : shape.top_k].astype(np.int32).ravel()
        held[turn.index] = build_turn_routing(flat, path, start, shape, turn.weight_version)
    config = compose([f"fanout={fanout}"]).fanout
    fan = fan_out(
        "r", build_segments(turns), 1.0, config, lambda one: build_segment_routing(one, held, shape)
    )
    assert len(fan.samples) == (1 if fanout == "collapse" else 5)
    chains = {tuple(chain.tokens.tolist()): chain for chain in build_segments(turns)}
    for sample in fan.samples:
        assert sample.routing is not None
        chain = chains[tuple(sample.tokens.tolist())]
        wanted = np.concatenate([held[index].experts for index in chain.turns])
        assert np.array_equal(sample.routing.experts[:-1], wanted), chain.kind
