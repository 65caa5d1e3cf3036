"""The self-check of every step: routing that is possible, and not the sample's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.records.routing import RoutingError
from runners.training.local import LocalTrainer
from runners.training.sample import Sample
from tests.fakes.local_trainer import make_trainer
from tests.fakes.routing_replay import FAULTS, SHAPE, corrupt, inject, r3
from tests.fakes.routing_rollouts import rollouts
from tests.fakes.variants import variants

SEVERAL: dict[str, Any] = {"epochs": 2, "minibatches": 2}
"""Updates of a step: the first pass is one of its own."""


def samples_of(engine: LocalTrainer, count: int = 10, **changes: int) -> list[Sample]:
    """Samples of an engine, one per rollout."""
    return [sample for [sample] in rollouts(engine, count, **changes)]


def step(trainer: LocalTrainer, samples: list[Sample]) -> dict[str, Any]:
    """Train on rollouts of one sample."""
    return trainer.step([[sample] for sample in samples])


def random_third(samples: list[Sample]) -> list[Sample]:
    """Replace the routing of the third sample with random experts."""
    return [*samples[:2], corrupt("random", samples[2], samples[2]), *samples[3:]]


def between_shadows(weights: Path, limit: float = 0.05, **changes: Any) -> LocalTrainer:
    """A trainer that measured its shadow in the step before; it learns almost nothing, so that the
    engine stays the same policy.
    """
    routing = r3(shadow_every=10, alarm_disagreement=limit)
    trainer = make_trainer(weights, routing=routing, **({"learning_rate": 1e-9} | changes))
    assert step(trainer, samples_of(make_trainer(weights)))["r3/k3_native"] is not None
    return trainer


def weights_of(trainer: LocalTrainer) -> list[torch.Tensor]:
    """Copies of the policy's weights."""
    return [weight.detach().clone() for weight in trainer.model.parameters()]


@pytest.mark.parametrize(
    "updates", variants([{}, SEVERAL], [SEVERAL]), ids=["one update", "several"]
)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_shadows_is_an_alarm_in_its_step_and_before_its_update(
    weights: Path, fault: str, updates: dict[str, Any]
) -> None:
    trainer = between_shadows(weights, **updates)
    good = samples_of(make_trainer(weights), seed=2)
    before = weights_of(trainer)
    with pytest.raises(RoutingError, match=r"none that training would make"):
        step(trainer, inject(fault, good, 0, SHAPE.experts))
    assert all(map(torch.equal, before, weights_of(trainer)))
    assert step(trainer, good)["r3/k3_native"] is None, "own routing is no alarm"


@pytest.mark.parametrize("engine", ["float32", "noisy routers"])
def test_healthy_steps_raise_no_alarm_and_measure_no_shadow_of_their_own(
    weights: Path, noisy: Path, engine: str
) -> None:
    routing = r3(shadow_every=4, alarm_disagreement=0.2)
    trainer = make_trainer(weights, routing=routing, learning_rate=1e-9)
    sampler = make_trainer(weights if engine == "float32" else noisy)
    for number in range(1, 8):
        metrics = step(trainer, samples_of(sampler, seed=number))
        assert (metrics["r3/k3_native"] is not None) == (number % 4 == 1)
        assert metrics["r3/refused_samples"] == 0.0
        assert metrics["r3/disagree_sample_max"] >= metrics["r3/disagree_slot"]


def test_a_sample_at_fault_stops_the_run_with_its_name_and_tokens(weights: Path) -> None:
    bad = random_third(samples_of(make_trainer(weights)))
    with pytest.raises(
        RoutingError,
        match=r"r2 replays choices of which \d\d% .*, from token \d+ to 30 .*1 of 10 samples",
    ):
        step(make_trainer(weights, routing=r3()), bad)


@pytest.mark.parametrize(
    "updates", variants([{}, SEVERAL], [SEVERAL]), ids=["one update", "several"]
)
@pytest.mark.parametrize("loss", variants(["ppo", "gspo"], ["ppo"]))
def test_a_sample_at_fault_is_masked_instead_and_trains_nothing(
    weights: Path, updates: dict[str, Any], loss: str
) -> None:
    good = samples_of(make_trainer(weights))
    masked = make_trainer(weights, routing=r3(on_fault="mask"), loss=loss, **updates)
    metrics = step(masked, random_third(good))
    assert metrics["r3/refused_samples"] == 1.0
    assert list(masked.refused) == ["r2"]
    assert "none that training would make" in masked.refused["r2"]
    assert metrics["r3/k3"] < 1e-10, "nor is it in the mismatch"
    without = make_trainer(weights, routing=r3(), loss=loss, **updates)
    step(without, [*good[:2], replace(good[2], advantage=0.0), *good[3:]])
    start = torch.cat([each.flatten() for each in weights_of(make_trainer(weights))])
    ours, theirs = (
        torch.cat([each.flatten() for each in weights_of(trainer)]) for trainer in (masked, without)
    )
    # Of the whole change: a gradient of nothing but rounding AdamW makes as large as any.
    assert (ours - theirs).norm() < 5e-3 * (theirs - start).norm()


def test_masking_does_not_hide_that_all_samples_are_at_fault(weights: Path) -> None:
    good = samples_of(make_trainer(weights), prompt_tokens=60)
    bad = inject("shifted by a token", good, 0, SHAPE.experts)
    with pytest.raises(RoutingError, match=r"\d+ of 10 samples: r\d replays choices"):
        step(make_trainer(weights, routing=r3(on_fault="mask")), bad)


def test_samples_that_are_masked_are_not_held_against_the_layers(weights: Path) -> None:
    good = samples_of(make_trainer(weights), 8, prompt_tokens=100)
    bad = [corrupt("random", good[0], good[0]), *good[1:7], corrupt("random", good[7], good[7])]
    trainer = make_trainer(weights, routing=r3(on_fault="mask"))
    assert step(trainer, bad)["r3/refused_samples"] == 2.0
    assert sorted(trainer.refused) == ["r0", "r7"]


def test_rows_shifted_from_the_first_sampled_token_are_found_behind_long_prompts(
    weights: Path,
) -> None:
    """Among all rows their share is below the limit, and no sample has enough of them."""
    good = samples_of(make_trainer(weights), prompt_tokens=400)
    bad = inject("shifted from the first sampled token", good, 0, SHAPE.experts)
    with pytest.raises(RoutingError, match=r"layer \d's replayed choices for 195 sampled tokens"):
        step(make_trainer(weights, routing=r3()), bad)


def test_a_fault_in_a_prefix_that_is_run_once_is_every_sample_s(weights: Path) -> None:
    good = samples_of(make_trainer(weights), prompt_tokens=100)
    bad = list(good)
    for index in (4, 5):  # they share their prompt
        wrong = corrupt("random", good[index], good[index]).routing
        own = good[index].routing
        assert own is not None
        assert wrong is not None
        experts = own.experts.copy()
        experts[:50] = wrong.experts[:50]
        bad[index] = replace(good[index], routing=replace(own, experts=experts))
    trainer = make_trainer(weights, routing=r3(on_fault="mask"))
    step(trainer, bad)
    assert sorted(trainer.refused) == ["r4", "r5"]


def test_a_few_tokens_are_no_evidence(weights: Path) -> None:
    good = samples_of(make_trainer(weights), prompt_tokens=400)
    [sample] = [replace(good[0], routing=good[0].routing)]
    routing = sample.routing
    assert routing is not None
    experts = routing.experts.copy()
    experts[400:405] = corrupt("random", sample, sample).routing.experts[:5]  # type: ignore[union-attr]
    bad = [replace(sample, routing=replace(routing, experts=experts)), *good[1:]]
    metrics = step(make_trainer(weights, routing=r3(shadow_every=0)), bad)
    assert metrics["r3/refused_samples"] == 0.0


def test_a_mismatch_above_the_last_shadow_s_is_an_alarm_by_itself(weights: Path) -> None:
    trainer = between_shadows(weights, limit=1.0)
    good = samples_of(make_trainer(weights), seed=2)
    with pytest.raises(RoutingError, match="differs more from the rollout with its routing"):
        step(trainer, inject("random in 10 % of the samples", good, 0, SHAPE.experts))


def test_a_mismatch_that_grew_for_other_reasons_is_measured_and_is_no_alarm(
    weights: Path, noisy: Path
) -> None:
    """The policy or its engine changed since the last shadow: routing is not to blame."""
    trainer = between_shadows(weights)
    changed = [
        replace(sample, logprobs=sample.logprobs - 0.5 * sample.loss_mask)
        for sample in samples_of(make_trainer(weights), seed=2)
    ]
    metrics = step(trainer, changed)
    assert metrics["r3/k3_native"] is not None
    assert metrics["r3/k3"] == pytest.approx(metrics["r3/k3_native"], rel=1e-3)


def test_a_resumed_trainer_measures_a_shadow_in_its_first_step(weights: Path) -> None:
    trainer = make_trainer(weights, routing=r3(shadow_every=10))
    trainer.steps = 4
    assert step(trainer, samples_of(make_trainer(weights)))["r3/k3_native"] is not None
