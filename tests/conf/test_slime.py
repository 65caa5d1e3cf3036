"""``trainer=slime``: what slime cannot do is refused by name, with the fix."""

from __future__ import annotations

import pytest

from conf.compose import compose, from_json, to_json
from conf.errors import ConfigError
from runners.campaigns.overlap.run_schedule import find_limits

SLIME = [
    *("trainer=slime", "model=qwen3_30b_a3b", "model.path=/weights", "launch=slurm"),
    *("launch.shared_dir=/shared", "task=jsonl", "task.path=/shared/t.jsonl"),
]


def faults(*lines: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose([*SLIME, *lines])
    return caught.value.faults


@pytest.mark.parametrize(
    ("lines", "named", "fix"),
    [
        (["trainer.loss=my_loss.py:loss"], "trainer.loss is a plug-in", "trainer.loss=ppo"),
        (["trainer.advantage=dr_grpo"], "trainer.advantage=dr_grpo", "trainer.normalize_std=false"),
        (["trainer.aggregation=segment"], "trainer.aggregation=segment", "=rollout or token"),
        (["trainer.aggregation=constant"], "trainer.aggregation=constant", "=rollout or token"),
        (["trainer.correction.truncate=sequence"], "truncate=sequence", "truncate=token or none"),
        (["trainer.correction.mask_outside=[0.5,2.0]"], "mask_outside", "set it to null"),
        (["trainer.correction.reject_outside=[0.5,2.0]"], "reject_outside", "set it to null"),
        (["trainer.correction.reject_negative_above=0.1"], "reject_negative_above", "set it to nu"),
        (
            ["trainer.correction.truncate=none", "routing_replay=recompute"],
            "routing_replay=recompute",
            "set it to token",
        ),
        (
            ["trainer.kl.weight=0.1", "trainer.kl.place=reward"],
            "trainer.kl.place=reward",
            "choose trainer.kl.place=loss",
        ),
        (["trainer.kl.weight=0.1", "trainer.kl.estimator=k1"], "trainer.kl.estimator=k1", "k2 or"),
        (["sampling.top_p=0.9"], "sampling.top_p=0.9 cuts", "top_p=1.0"),
        (["run.overlap=step"], "trainer.rollout_nodes=0", "colocated"),
        (
            ["run.overlap=step", "trainer.rollout_nodes=1", "trainer.correction.truncate=none"],
            "run.overlap=step trains on rollouts of older weights",
            "set trainer.correction.truncate=token",
        ),
        (
            ["run.overlap=stream", "trainer.rollout_nodes=1", "run.staleness=0"],
            "run.staleness=0",
            "raise run.staleness to 1",
        ),
        (
            ["run.overlap=stream", "trainer.rollout_nodes=1", "run.window=4"],
            "run.window=4 is more than run.staleness=4 − 1",
            "lower run.window",
        ),
        (
            ["routing_replay=rollout", "routing_replay.shadow_every=5"],
            "routing_replay.shadow_every=5 is a forward pass without replay",
            "set routing_replay.shadow_every=0",
        ),
        (["engine.cache_tokens=9"], "engine.cache_tokens=9 does nothing", "leave it out"),
        (["engine=sglang", "engine.url=http://h:1"], "engine=sglang is not asked", "drop engine"),
        (
            ["trainer.epochs=2"],
            "trainer.epochs belongs to trainer=local",
            "trainer=slime is chosen: leave it out, or add trainer=local",
        ),
    ],
)
def test_what_slime_lacks_is_refused_by_name_with_the_fix(
    lines: list[str], named: str, fix: str
) -> None:
    (fault,) = faults(*lines)
    assert named in fault
    assert fix in fault


def test_a_mean_that_slime_has_can_be_chosen_with_dr_grpo() -> None:
    trainer = compose([*SLIME, "trainer.advantage=dr_grpo", "trainer.aggregation=rollout"]).trainer
    assert trainer.mean_of_losses == "rollout"


def test_a_stored_job_is_read_back_and_one_of_an_older_version_too() -> None:
    config = compose([*SLIME, "routing_replay=rollout"])
    assert from_json(to_json(config), source="config.json") == config
    older = to_json(config).replace('"loss": "ppo",', '"estimator": "grpo", "importance_cap": 2.0,')
    assert from_json(older, source="config.json") == config


def test_a_key_that_nobody_reads_is_refused_locally_too() -> None:
    lines = ["model=qwen3_30b_a3b", "model.path=/weights", "run.steps=0"]
    with pytest.raises(ConfigError) as caught:
        compose([*lines, "model.layout.tensor=8"])
    (fault,) = caught.value.faults
    assert fault.startswith("model.layout.tensor=8 does nothing with trainer=local: only trainer=")
    assert compose(lines).trainer.kind == "local"


def test_groups_are_replaced_as_by_the_local_trainer() -> None:
    rollout = compose([*SLIME, "rollout.replace_flat=true", "rollout.oversample_groups=1"]).rollout
    assert (rollout.spare_groups, rollout.replace_flat, rollout.oversample_groups) == (2, True, 1)
    assert compose([*SLIME, "run.sampler=curriculum"]).run.sampler == "curriculum"


@pytest.mark.parametrize(
    ("lines", "staleness", "window"),
    [([], 3, 1), (["run.staleness=1"], 0, 0), (["run.staleness=3", "run.window=2"], 2, 2)],
)
def test_the_schedule_of_a_stream_leaves_room_for_the_batch_that_slime_asks_for_early(
    lines: list[str], staleness: int, window: int
) -> None:
    stream = [*SLIME, "run.overlap=stream", "trainer.rollout_nodes=1", *lines]
    limits = find_limits(compose(stream))
    assert (limits.mode, limits.staleness, limits.window) == ("stream", staleness, window)
