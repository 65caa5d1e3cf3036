"""Each token of a step says how far training's own router agrees with the experts it replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.records.routing import NO_ROW, Routing, checksum_tokens
from runners.records.store.run_store import RunStore
from runners.training.sample import Sample
from tests.fakes.local_trainer import make_trainer
from tests.fakes.routing_replay import SHAPE, r3
from tests.fakes.routing_rollouts import rollouts

ROW = 3


def with_another_row(sample: Sample) -> Sample:
    """Return the sample with other experts for one of its tokens."""
    assert sample.routing is not None
    experts = sample.routing.experts.copy()
    experts[ROW] = (experts[ROW] + SHAPE.experts // 2) % SHAPE.experts
    return replace(sample, routing=Routing(experts, sample.routing.valid))


@pytest.mark.parametrize("changes", [{}, {"epochs": 2, "minibatches": 2}])
def test_a_token_that_training_would_route_otherwise_is_told_apart(
    weights: Path, changes: dict[str, Any]
) -> None:
    samples = [sample for [sample] in rollouts(make_trainer(weights), 6, seed=2)]
    samples[2] = with_another_row(samples[2])
    trainer = make_trainer(weights, routing=r3(shadow_every=0), **changes)
    metrics = trainer.step([[sample] for sample in samples])
    found = {each.rollout_id: each for each in trainer.agreements}
    assert len(found) == len(trainer.agreements) == len(samples)
    for number, sample in enumerate(samples):
        each = found[sample.rollout_id]
        assert sample.routing is not None
        run = len(each.percent)
        assert each.tokens_crc == checksum_tokens(sample.tokens[:run])
        assert ((each.percent != NO_ROW) == sample.routing.valid[:run]).all()
        other = np.flatnonzero(each.percent[sample.routing.valid[:run]] < 100)
        # what follows in the layers above, and the tokens that attend to it, may differ, too
        assert (ROW in other) == (number == 2)
    assert metrics["r3/disagree_token"] > 0


def test_agreements_are_kept_with_their_session(tmp_path: Path, weights: Path) -> None:
    samples = [sample for [sample] in rollouts(make_trainer(weights), 2)]
    trainer = make_trainer(weights, routing=r3(shadow_every=10))
    trainer.step([[sample] for sample in samples])
    (first, second) = trainer.agreements
    with RunStore.create(tmp_path / "run", {}) as store:
        for _ in range(2):  # a step that is trained again
            store.put_agreements([("a", first), ("b", second)])
        ((crc, percent),) = store.agreements("a")
        assert store.agreements("c") == []
    assert crc == first.tokens_crc
    assert (percent == first.percent).all()
