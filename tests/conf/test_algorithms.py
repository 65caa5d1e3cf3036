"""Keys of advantages and losses that mean nothing together are refused."""

from __future__ import annotations

import json

import pytest

from conf.compose import compose, to_json
from conf.errors import ConfigError
from conf.sections.task import find_part_weights
from conf.warnings import find_warnings

SLIME = [
    *("trainer=slime", "model=qwen3_30b_a3b", "model.path=weights", "launch=ssh"),
    *("launch.shared_dir=/shared", "launch.hosts_file=hosts", "task=jsonl", "task.path=t.jsonl"),
]
EVALUATIONS = ["run.eval_tasks=16", "run.eval_every=4"]


def faults(*lines: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(list(lines))
    return caught.value.faults


def test_a_loss_of_the_users_own_needs_one_process() -> None:
    (fault,) = faults("trainer.devices=2", "trainer.loss=some.module:Loss")
    assert "trainer.devices=2, and trainer.loss is a plug-in" in fault


def test_what_is_divided_among_devices_is_worth_it() -> None:
    (fault,) = faults("trainer.shard=optimizer")
    assert "trainer.shard=optimizer divides among devices, and trainer.devices=1" in fault
    (fault,) = faults("trainer.shard=model", "trainer.devices=2", "trainer.lora.rank=4")
    assert "trainer.lora.rank=4: a base with adapters is not divided" in fault
    assert "set trainer.shard=none" in fault


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
    assert compose([*SLIME, "trainer.loss=gspo"]).trainer.loss == "gspo"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["trainer.kl={weight: 0.1, estimator: k1}"], "trainer.kl.estimator=k1 with trainer.kl.pl"),
        (["trainer.advantage=rejection"], "trainer.advantage=rejection trains rollouts with at"),
        (["trainer.accept_reward=1"], "trainer.accept_reward=1.0 is of trainer.advantage=reject"),
        (
            ["trainer.advantage=rejection", "trainer.accept_reward=1"],
            "trainer.accept_reward=1 is more than any rollout can earn, at most 0.98 less what its "
            "turns cost: lower it; 0.34 accepts all that are solved",
        ),
        (["trainer.correction.mask_outside=[2,0.5]"], "trainer.correction.mask_outside=[2.0, 0.5]"),
        (
            ["trainer.correction.truncate=token", "trainer.correction.floor=3"],
            "trainer.correction.floor=3 is not below trainer.correction.cap=2",
        ),
        (
            ["trainer.decay=linear", "trainer.min_learning_rate=1.0"],
            "trainer.min_learning_rate=1 is above",
        ),
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


def test_the_overlong_penalty_leaves_solving_above_giving_up() -> None:
    paid = compose(["reward.overlong_penalty=0.3", "reward.token_budget=1000"]).reward
    assert (paid.kind, getattr(paid, "overlong_tokens", None)) == ("tests", 200)
    (fault,) = faults("reward.overlong_penalty=0.4")
    assert (
        "less reward.turn_penalty + reward.overlong_penalty + reward.malformed_penalty = 1.06"
        in fault
    )
    lines = ["reward.overlong_penalty=0.1", "reward.token_budget=10", "reward.overlong_tokens=11"]
    (fault,) = faults(*lines)
    assert fault.startswith("reward.overlong_tokens=11 is more than reward.token_budget=10")


def test_the_weights_of_parts_are_of_a_reward_of_ones_own() -> None:
    lines = ["reward=custom", "reward.target=my_rewards:Brief"]
    reward = compose([*lines, "reward.part_weights.style=0.2"]).reward
    assert find_part_weights(reward) == {"style": 0.2}
    assert compose([*lines, "reward.part_weights={a b: 2}"]).reward != reward
    (fault,) = faults("reward.part_weights.style=0.2")
    assert "reward.part_weights" in fault
    weights = find_part_weights(compose(["reward.unsolved=-1"]).reward)
    assert weights["tests"] == 2.0
    assert weights["turn_penalty"] == 0.16


@pytest.mark.parametrize("key", ["sampling.top_p=0.95", "sampling.top_k=40"])
def test_training_samples_from_the_whole_distribution_and_evaluation_need_not(key: str) -> None:
    for lines in ([], SLIME):
        (fault,) = faults(*lines, key)
        assert fault.startswith(f"{key} cuts the distribution")
        assert "agentrl eval may cut it" in fault
    name, value = key.removeprefix("sampling.").split("=")
    assert getattr(compose([key, "run.steps=0"]).sampling, name) == float(value)


def test_gdpo_is_refused_where_penalties_could_outweigh_the_tests() -> None:
    (fault,) = faults("trainer.advantage=gdpo")
    assert fault.startswith(
        "reward.turn_penalty + reward.malformed_penalty = 0.66 with trainer.adv"
    )
    assert fault.endswith("lower the penalties below 0.5 together")
    lines = ["trainer.advantage=gdpo", "reward.malformed_penalty=0.3"]
    assert compose(lines).trainer.advantage == "gdpo"
    assert compose([*SLIME, "trainer.advantage=gdpo"]).trainer.advantage == "gdpo"
    (fault,) = faults(*lines, "run.rollouts_per_task=16")
    assert "below 0.354" in fault


def test_credit_by_turn_is_by_a_linear_baseline_and_for_the_local_trainer() -> None:
    for name in ("rloo", "dr_grpo"):
        assert compose(["trainer.credit=turn", f"trainer.advantage={name}"])
    (fault,) = faults("trainer.credit=turn")
    assert fault.endswith("trainer.advantage=grpo is none: choose rloo or dr_grpo")
    lines = ["trainer.credit=turn", "trainer.advantage=rloo"]
    (fault,) = faults(*lines, "fanout.reward=uniform")
    assert fault.startswith("fanout.reward=uniform divides a rollout's advantage")
    assert compose([*lines, "fanout=collapse"])
    (fault,) = faults(*SLIME, *lines)
    assert fault.startswith("trainer.credit")


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (
            ["trainer.loss=cispo", "trainer.clip_low=0.1"],
            "trainer.clip_low=0.1 does nothing with trainer.loss=cispo: leave it out, or choose "
            "trainer.loss=ppo or gspo",
        ),
        (
            ["trainer.loss=my.module:Loss", "trainer.clip_high=0.1"],
            "trainer.clip_high=0.1 does nothing with trainer.loss=my.module:Loss: leave it out, or "
            "choose trainer.loss=ppo, gspo or cispo",
        ),
        (
            ["trainer.kl={weight: 0, estimator: k2}"],
            "trainer.kl.estimator=k2 does nothing with trainer.kl.weight=0: leave it out, or set "
            "trainer.kl.weight above 0",
        ),
        (
            ["rollout.replace_flat=true", "rollout.spare_groups=0"],
            "rollout.replace_flat=true and rollout.spare_groups=0: no group could replace a flat "
            "one; raise rollout.spare_groups, or set rollout.replace_flat=false",
        ),
    ],
)
def test_a_key_that_another_leaves_idle_is_refused(lines: list[str], fault: str) -> None:
    assert faults(*lines) == [fault]


def test_a_key_with_its_default_is_no_fault_where_it_is_idle() -> None:
    """So that a sweep, or a script, may name it."""
    assert compose(["trainer.loss=cispo", "trainer.clip_low=0.2"]).trainer.loss == "cispo"
    tokens = compose(["model.max_context_tokens=900", "trainer.aggregation_tokens=900"]).trainer
    assert getattr(tokens, "aggregation_tokens", None) == 900


def test_a_wrong_choice_hides_what_it_would_leave_idle() -> None:
    (fault,) = faults("trainer.decay=linaer", "trainer.decay_steps=9")
    assert fault.startswith("trainer.decay=linaer must be")


def test_of_a_stored_configuration_only_what_is_changed_is_judged() -> None:
    """A run that is resumed with more steps keeps the course that is written in its file."""
    stored = json.loads(to_json(compose(["run.steps=7"])))
    assert getattr(compose(["run.steps=9"], base=stored).trainer, "decay_steps", None) == 7
    stored = json.loads(to_json(compose(["trainer.clip_low=0.1"])))
    with pytest.raises(ConfigError, match=r"clip_low=0\.1 does nothing with trainer\.loss=ci"):
        compose(["trainer.loss=cispo"], base=stored)


@pytest.mark.parametrize(
    ("lines", "caution"),
    [
        (["trainer.credit=turn", "trainer.advantage=rloo"], None),
        (
            ["trainer.credit=turn", "trainer.advantage=rloo", "trainer.aggregation=rollout"],
            "biases the gradient",
        ),
        (
            [
                *("trainer.credit=turn", "trainer.advantage=rloo"),
                *("reward.turn_penalty=0", "reward.malformed_penalty=0"),
            ],
            "every turn has its rollout's advantage",
        ),
        (["trainer.loss=reinforce"], None),
        (["trainer.loss=reinforce", "trainer.minibatches=2"], "each step makes 2 updates"),
        (["trainer.loss=reinforce", "trainer.epochs=3"], "each step makes 3 updates"),
        ([*SLIME, "trainer.loss=reinforce", "trainer.minibatches=2"], "makes 2 updates"),
        (
            [
                *("trainer.loss=reinforce", "trainer.epochs=3"),
                *("trainer.advantage=rejection", "trainer.accept_reward=0.3"),
            ],
            None,
        ),
        (["trainer.loss=cispo", "trainer.epochs=3"], None),
        (["routing_replay=recompute", "trainer.epochs=2"], None),
        (["routing_replay=recompute"], "it costs a forward pass and changes nothing"),
        (["trainer.loss=reinforce", "trainer.epochs=3", "run.steps=0"], None),
        ([*SLIME, *EVALUATIONS, "run.steps=10"], "not after the last of run.steps=10"),
        ([*SLIME, *EVALUATIONS, "run.steps=8"], None),
        ([*SLIME, "run.steps=10", "run.eval_tasks=16"], None),
        (["run.steps=10", "run.eval_every=4"], None),
    ],
)
def test_a_legal_combination_that_is_seldom_meant_is_warned_of(
    lines: list[str], caution: str | None
) -> None:
    found = list(find_warnings(compose(lines)))
    assert len(found) == (caution is not None)
    assert caution is None or caution in found[0]


def test_the_tiny_policys_last_learning_rate_follows_from_the_first() -> None:
    assert compose([]).trainer.min_learning_rate == 1e-4
    assert compose(["trainer.learning_rate=3e-5"]).trainer.min_learning_rate == 1e-5
    with pytest.raises(ConfigError) as error:
        compose(["trainer.learning_rate=abc"])
    assert str(error.value).count("learning_rate") == 1
