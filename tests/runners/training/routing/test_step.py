"""Routing replay in the local trainer: what is replayed, measured and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conf.sections.training import RoutingRecomputeConfig, RoutingReplayConfig
from runners.records.routing import RoutingError, RoutingShape
from runners.training.routing.step import RoutingReplay
from tests.fakes.local_trainer import VOCAB, make_trainer
from tests.fakes.routing_replay import corrupt, r3
from tests.fakes.routing_rollouts import rollouts
from tests.fakes.tiny_model import write_tiny_model

R2 = RoutingRecomputeConfig(kind="recompute")


def test_an_engine_with_the_same_routers_has_no_mismatch_with_and_without_replay(
    weights: Path,
) -> None:
    trainer = make_trainer(weights, routing=r3())
    metrics = trainer.step(rollouts(make_trainer(weights)))
    assert metrics["r3/k3"] is not None
    assert metrics["r3/k3"] < 1e-10
    assert metrics["r3/k3_native"] is not None
    assert metrics["r3/k3_native"] < 1e-10
    assert metrics["r3/disagree_slot"] == 0.0
    assert metrics["r3/captured"] == metrics["r3/replayed"] == 1.0
    assert metrics["r3/invalid_rows"] == 0.0
    assert (metrics["r3/gate_grad_norm"] or 0.0) > 0.0


@pytest.mark.parametrize("routing", [r3(), R2])
def test_routing_is_replayed_in_a_policy_with_adapters(
    weights: Path, noisy: Path, routing: RoutingReplayConfig
) -> None:
    """Peft replaces linear layers in place: the routers stay where the hooks look for them."""
    pytest.importorskip("peft", reason="pip install 'agentrl-campaigns[lora]'")
    trainer = make_trainer(weights, routing=routing, lora={"rank": 4})
    metrics = trainer.step(rollouts(make_trainer(noisy)))
    assert metrics["r3/replayed"] == 1.0
    assert metrics["r3/gate_grad_norm"] == 0.0, "only adapters have gradients"
    assert metrics["policy/grad_norm"] > 0.0
    if routing is not R2:
        assert metrics["r3/disagree_slot"] > 0.0
        assert metrics["r3/k3"] < metrics["r3/k3_native"]


@pytest.mark.parametrize("routing", [r3(), R2])
def test_a_step_has_every_metric_and_none_is_zero_for_lack_of_data(
    weights: Path, routing: RoutingReplayConfig
) -> None:
    names = "captured replayed disagree_slot disagree_token k1 k3 k3_native p999_abs F_1.1 F_2"
    names += " p999_abs_native F_1.1_native routing_share gate_grad_norm invalid_rows"
    samples = rollouts(make_trainer(weights))
    metrics = make_trainer(weights, routing=routing).step(samples)
    assert {f"r3/{name}" for name in names.split()} <= metrics.keys()
    assert (metrics["r3/captured"] is None) == (routing is R2), "R2 captures nothing"
    assert (metrics["r3/k3_native"] is None) == (routing is R2), "R2 is not compared"
    flat = [[replace(sample, advantage=0.0)] for [sample] in samples]
    metrics = make_trainer(weights, routing=routing).step(flat)
    for name in ("replayed", "disagree_slot", "disagree_token", "k1", "k3", "F_2"):
        assert metrics[f"r3/{name}"] is None, "nothing was trained"


def test_replay_removes_the_mismatch_that_noisy_routers_cause(weights: Path, noisy: Path) -> None:
    trainer = make_trainer(weights, routing=r3())
    metrics = trainer.step(rollouts(make_trainer(noisy)))
    k3, native = metrics["r3/k3"], metrics["r3/k3_native"]
    assert k3 is not None
    assert native is not None
    assert 0.0 < (metrics["r3/disagree_slot"] or 0.0) < 0.3
    assert k3 < native / 4
    assert metrics["r3/routing_share"] == pytest.approx(1 - k3 / native)


def test_a_shared_prompt_is_run_once_only_as_far_as_it_was_routed_alike(
    weights: Path, noisy: Path
) -> None:
    """Micro-batching and sharing change neither the update nor what is measured."""
    good = rollouts(make_trainer(noisy))
    other = [list(samples) for samples in good]
    [sample] = other[1]
    assert sample.routing is not None
    experts = sample.routing.experts.copy()
    experts[5] = experts[5][..., ::-1]  # the same experts in another order: routed otherwise
    other[1] = [replace(sample, routing=replace(sample.routing, experts=experts))]
    whole = make_trainer(weights, routing=r3()).step(good)
    alone = make_trainer(weights, routing=r3(), tokens_per_microbatch=8).step(other)
    assert alone["loss/policy"] == pytest.approx(whole["loss/policy"], abs=1e-6)
    assert alone["policy/grad_norm"] == pytest.approx(whole["policy/grad_norm"], rel=1e-4)
    assert alone["r3/k3"] == pytest.approx(whole["r3/k3"], rel=1e-3)


def test_samples_without_routing_are_routed_natively_among_others(
    weights: Path, noisy: Path
) -> None:
    mixed = rollouts(make_trainer(noisy))
    mixed[2] = [replace(mixed[2][0], routing=None)]
    metrics = make_trainer(weights, routing=r3()).step(mixed)
    assert metrics["r3/captured"] == pytest.approx(7 / 8)
    # Of three pairs 12 + 2 · 19 positions; of one without a common routing 2 · (12 + 19).
    assert metrics["r3/replayed"] == pytest.approx(1 - 31 / (3 * 50 + 62))
    assert metrics["r3/invalid_rows"] == 31.0


def test_an_impossible_sample_can_be_masked_instead(weights: Path) -> None:
    engine = make_trainer(weights)
    samples = rollouts(engine)
    samples[0] = [corrupt("zeros", samples[0][0], samples[1][0])]
    with pytest.raises(RoutingError, match="r0 routes token 0 in layer 0 twice"):
        make_trainer(weights, routing=r3()).step(samples)
    trainer = make_trainer(weights, routing=r3(on_fault="mask"))
    metrics = trainer.step(samples)
    assert metrics["r3/refused_samples"] == 1.0
    (alarm,) = trainer.refused.items()
    assert alarm[0] == "r0"
    assert alarm[1].startswith("routes token 0 in layer 0 twice to one expert")
    trainer.step(rollouts(engine))
    assert trainer.refused == {}, "of the last step"
    assert metrics["train/updates"] == 1.0


def test_a_router_that_is_replaced_after_the_hooks_raises_the_alarm(
    weights: Path,
) -> None:
    trainer = make_trainer(weights, routing=r3())
    layers = trainer.model.model.layers  # type: ignore[union-attr]
    layers[1].mlp.gate = make_trainer(weights).model.model.layers[1].mlp.gate  # type: ignore
    with pytest.raises(RoutingError, match="layer 1's router fired 0 times"):
        trainer.step(rollouts(make_trainer(weights)))


def test_a_config_that_misnames_the_layers_that_route_is_refused(tmp_path: Path) -> None:
    """Rows would be replayed in other layers than they came from."""
    policy = write_tiny_model(tmp_path, vocab_size=VOCAB, mlp_only_layers=[0])
    shape = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))
    with pytest.raises(RoutingError, match=r"layers \[1\] of 2 route, and .* \[0, 1\] of 2"):
        RoutingReplay(make_trainer(policy).model, r3(), shape)


@pytest.mark.parametrize("routing", [r3(), R2])
def test_later_updates_of_a_step_use_the_routing_of_the_first(
    weights: Path, routing: RoutingReplayConfig
) -> None:
    trainer = make_trainer(weights, routing=routing, epochs=3, learning_rate=3e-2)
    metrics = trainer.step(rollouts(make_trainer(weights)))
    assert metrics["train/updates"] == 3.0
    assert (metrics["r3/disagree_slot"] or 0.0) > 0.0, "the routers have moved, the experts not"
    assert metrics["r3/replayed"] == 1.0


def test_a_dense_policy_is_refused(tmp_path: Path) -> None:
    dense = write_tiny_model(tmp_path, vocab_size=VOCAB, num_experts=8, mlp_only_layers=[0, 1])
    config = json.loads((dense / "config.json").read_text())
    without = {name: value for name, value in config.items() if "experts" not in name}
    (dense / "config.json").write_text(json.dumps(without | {"num_experts": 0}))
    with pytest.raises(RoutingError, match="routing_replay=off"):
        make_trainer(dense, routing=r3())


@pytest.mark.parametrize("truncate", ["token", "sequence"])
def test_a_correction_weighs_by_the_mismatch_and_reports_the_effective_sample_size(
    weights: Path, noisy: Path, truncate: str
) -> None:
    correction = {"truncate": truncate, "cap": 1.05, "reject_outside": (0.5, 2.0)}
    trainer = make_trainer(weights, correction=correction, epochs=2)
    metrics = trainer.step(rollouts(make_trainer(noisy)))
    assert 0.0 < (metrics["policy/ess"] or 0.0) <= 1.0
    assert (metrics["policy/truncated"] or 0.0) > 0.0
    assert metrics["policy/rejected"] == 0.0
