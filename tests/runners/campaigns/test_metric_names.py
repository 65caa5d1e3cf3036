"""The page of metrics defines what a step writes, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runners.campaigns.step_metrics import step_metrics
from runners.observe.live.result import summarize_evaluation
from runners.records.record import TASK_SET
from runners.training.supervised.step import train_on_examples
from tests.fakes.local_trainer import VOCAB, make_examples, make_rollouts, make_trainer
from tests.fakes.metrics_page import documented_metrics, undocumented
from tests.fakes.records import a_rollout
from tests.fakes.routing_replay import r3
from tests.fakes.routing_rollouts import rollouts as routed_rollouts
from tests.fakes.step_samples import LINEAR, rollouts, samples_of
from tests.fakes.tiny_model import write_tiny_model

OF_THE_LOOP = {"step", "eval/step", "time/step_s", "disk/free_mb", "alarms"}
"""Compared with the page in ``test_campaign.py`` on the lines of a real run."""


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of everything that a step with a mixture, a verifier and replay writes."""
    records = [
        replace(
            record,
            extra={TASK_SET: "NAME", "session": {"mechanical": {"NAME": 1}}},
            verdict={"rewards": {"NAME": 0.5}},
            reward_parts={"NAME": 1.0},
        )
        for record in rollouts(1.0, 0.0)
    ]
    policy = write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)
    trained = make_trainer(policy, routing=r3()).step(routed_rollouts(make_trainer(policy)))
    fitted = train_on_examples(make_trainer(policy), make_examples())
    measured = [
        a_rollout(f"eval-000001-000-0{member}", member=member, extra={TASK_SET: "NAME"})
        for member in range(2)
    ]
    return {
        *step_metrics(samples_of(records, LINEAR), 1.0, ["NAME"]),
        *trained,
        *fitted,
        *(f"eval/{name}" for name in summarize_evaluation(measured)),
    }


def test_every_metric_of_a_step_is_documented(emitted: set[str]) -> None:
    assert not undocumented(emitted), "define them in docs/metrics.md"


def test_every_documented_metric_is_written(emitted: set[str]) -> None:
    written = {name.replace("pass@2", "pass@K") for name in emitted} | OF_THE_LOOP
    assert not documented_metrics() - written, "no step writes them: take them off docs/metrics.md"


def test_a_step_without_an_update_has_the_same_metrics(tmp_path: Path) -> None:
    policy = write_tiny_model(tmp_path, vocab_size=VOCAB)
    trainer = make_trainer(policy)
    some = make_rollouts(trainer, 4)
    none = [[replace(sample, advantage=0.0) for sample in samples] for samples in some]
    idle = trainer.step(none)
    assert idle.keys() == trainer.step(some).keys()
    assert idle["train/updates"] == 0
    assert {name for name, value in idle.items() if value is None} == {
        name for name in idle if name.startswith(("policy/", "loss/", "train/packing"))
    }
