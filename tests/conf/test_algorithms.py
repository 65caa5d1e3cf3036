"""Keys of advantages and losses that mean nothing together are refused."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.errors import ConfigError

SLIME = [
    *("trainer=slime", "model=qwen3_30b_a3b", "model.path=weights", "launch=ssh"),
    *("launch.shared_dir=/shared", "launch.hosts_file=hosts", "task=jsonl", "task.path=t.jsonl"),
]


def faults(*lines: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(list(lines))
    return caught.value.faults


def test_a_dual_clip_is_of_ppo_alone() -> None:
    assert compose(["trainer.clip_dual=3.0"]).trainer.kind == "local"
    (fault,) = faults("trainer.clip_dual=3.0", "trainer.loss=gspo")
    assert fault == "trainer.clip_dual=3.0 is of trainer.loss=ppo alone: set it to null"


def test_slime_has_the_advantages_whose_mean_it_has() -> None:
    for name in ("rloo", "max_rl", "reinforce_pp", "reinforce_pp_baseline"):
        assert compose([*SLIME, f"trainer.advantage={name}"]).trainer.advantage == name
    compose([*SLIME, "trainer.advantage=rejection", "trainer.accept_reward=1"])
    (fault,) = faults(*SLIME, "trainer.advantage=rejection")
    assert "trainer.accept_reward" in fault
    (fault,) = faults(*SLIME, "trainer.advantage=dr_grpo")
    assert "choose trainer.advantage=grpo trainer.normalize_std=false" in fault
    (fault,) = faults(*SLIME, "trainer.loss=gspo")
    assert "trainer.loss" in fault


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["trainer.kl={weight: 0.1, estimator: k1}"], "trainer.kl.estimator=k1 with trainer.kl.pl"),
        (["trainer.advantage=rejection"], "trainer.advantage=rejection trains rollouts with at"),
        (["trainer.accept_reward=1"], "trainer.accept_reward=1.0 is of trainer.advantage=reject"),
        (["trainer.min_learning_rate=1.0"], "trainer.min_learning_rate=1 is above"),
        (
            ["trainer.decay=linear", "trainer.warmup_steps=10", "trainer.decay_steps=10"],
            "trainer.warmup_steps=10 leaves nothing of trainer.decay_steps=10",
        ),
    ],
)
def test_what_would_not_train_is_refused(lines: list[str], fault: str) -> None:
    (found,) = faults(*lines)
    assert found.startswith(fault)


def test_the_learning_rate_decays_over_the_run() -> None:
    trainer = compose(["run.steps=37", "trainer.decay=linear"]).trainer
    assert trainer.kind == "local"
    assert trainer.decay_steps == 37
