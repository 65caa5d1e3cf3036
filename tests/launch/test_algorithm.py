"""slime's arguments mean what the keys mean for the local trainer."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import ConfigError
from launch import flags
from launch.cluster_job import make_cluster_job
from launch.job_files import render_settings
from launch.megatron_arguments import Arguments
from launch.memory import estimate_memory
from launch.plan import plan_job
from launch.slime_arguments import IMPOSSIBLE, build_slime_arguments, train_script
from launch.topology import plan_topology
from runners.training.schedule import find_learning_rate
from tests.fakes.cluster_config import a_config


def arguments(*overrides: str) -> Arguments:
    found = plan_job(a_config(*overrides)).arguments
    assert not flags.check(found)
    return found


@pytest.mark.parametrize(
    ("loss", "estimator", "low", "high"),
    [
        ("ppo", "grpo", "0.2", "0.28"),
        ("gspo", "gspo", "0.2", "0.28"),
        ("cispo", "cispo", "1", "0.28"),  # a ratio is never below 1 − 1
        ("reinforce", "cispo", "0", "0"),  # the ratio is 1
    ],
)
def test_a_loss_is_slime_s_ratio_with_its_bounds(
    loss: str, estimator: str, low: str, high: str
) -> None:
    found = arguments(f"trainer.loss={loss}")
    assert found["--advantage-estimator"] == (estimator,)
    assert (found["--eps-clip"], found["--eps-clip-high"]) == ((low,), (high,))
    assert "--eps-clip-c" not in found
    assert arguments("trainer.clip_dual=3.0")["--eps-clip-c"] == ("3",)


ASYNCHRONOUS = ("run.overlap=step", "trainer.rollout_nodes=4")


def test_overlap_chooses_slime_s_asynchronous_loop_on_gpus_of_its_own() -> None:
    found = arguments(*ASYNCHRONOUS)
    assert "--colocate" not in found
    assert found["--update-weights-interval"] == ("1",)
    assert "--use-tis" in found
    assert train_script(a_config(*ASYNCHRONOUS)) == "train_async.py"
    assert train_script(a_config()) == "train.py"
    settings = render_settings(plan_job(a_config(*ASYNCHRONOUS)), ["agentrl"])
    assert "\nTRAIN_SCRIPT=train_async.py\n" in settings
    assert "--update-weights-interval" not in arguments()


def test_rollouts_and_tasks_are_ours_whatever_overlaps() -> None:
    for overrides in ((), ASYNCHRONOUS):
        found = arguments(*overrides, "run.eval_tasks=1")
        for flag in ("--rollout-function-path", "--data-source-path", "--eval-function-path"):
            module, _, name = found[flag][0].rpartition(".")
            assert callable(getattr(import_module(module), name))
        assert not found.keys() & IMPOSSIBLE.keys() - {"--colocate"}


@pytest.mark.parametrize(
    "flag",
    [
        *("--log-passrate", "--group-rm", "--partial-rollout", "--over-sampling-batch-size 9"),
        *("--dynamic-sampling-filter-path a.b", "--custom-generate-function-path a.b"),
    ],
)
def test_flags_that_slime_cannot_combine_with_lists_are_refused_by_name(flag: str) -> None:
    words = ",".join(flag.split())
    with pytest.raises(ConfigError) as caught:
        arguments(f"launch.extra_flags=[{words}]")
    (fault,) = caught.value.faults
    name = flag.split()[0]
    assert fault == f"launch.extra_flags: {name} {IMPOSSIBLE[name]}"
    assert name in flags.load_flags(), "slime has it"


def test_the_penalty_is_a_loss_and_never_slime_s_reward() -> None:
    found = arguments("trainer.kl.weight=0.05", "trainer.kl.estimator=k3")
    assert "--use-kl-loss" in found
    assert found["--kl-loss-coef"] == ("0.05",)
    assert found["--kl-loss-type"] == ("k3",)
    assert found["--kl-coef"] == ("0",)
    assert "--use-kl-loss" not in arguments()


def test_the_reference_policy_is_counted_in_the_node_s_memory() -> None:
    def host_gib(*overrides: str) -> float:
        job = make_cluster_job(a_config(*overrides))
        return estimate_memory(job, plan_topology(job)).host_gib

    assert host_gib("trainer.kl.weight=0.1") > host_gib() + 1


def test_without_a_correction_the_ratio_is_that_to_the_engine() -> None:
    none, some = arguments("trainer.correction.truncate=none"), arguments()
    assert "--use-rollout-logprobs" in none
    assert "--use-tis" not in none
    assert "--use-tis" in some  # slime refuses both together
    assert "--use-rollout-logprobs" not in some
    assert (some["--tis-clip"], some["--tis-clip-low"]) == (("2",), ("0",))


def megatron_rate(found: Arguments, update: int) -> float:
    """Return the learning rate of update 0, 1, … as ``OptimizerParamScheduler.get_lr`` of
    megatron.core computes it.
    """

    def number(flag: str, default: float = 0.0) -> float:
        return float(found[flag][0]) if flag in found else default

    full, least, first = number("--lr"), number("--min-lr"), number("--lr-warmup-init")
    warmup, end = number("--lr-warmup-iters"), number("--lr-decay-iters")
    assert warmup < end, "Megatron asserts it"
    if warmup > 0 and update <= warmup:
        return first + (full - first) * update / warmup
    (style,) = found["--lr-decay-style"]
    if style == "constant":
        return full
    if update > end:
        return least
    done = (update - warmup) / (end - warmup)
    left = {"linear": 1.0 - done, "cosine": 0.5 * (math.cos(math.pi * done) + 1.0)}[style]
    return least + left * (full - least)


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(0, 12), st.integers(1, 30), st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_megatron_s_learning_rate_is_the_local_trainer_s(
    decay: str, warmup: int, steps: int, updates: int
) -> None:
    if decay != "constant" and steps <= warmup:
        steps += warmup + 1
    rates = ("trainer.learning_rate=1e-3", "trainer.min_learning_rate=1e-4")
    job = make_cluster_job(a_config("trainer.decay=linear", *rates))
    trainer = job.trainer.model_copy(
        update={
            "decay": decay, "warmup_steps": warmup, "decay_steps": steps, "minibatches": updates,
        }
    )  # fmt: skip
    changed = replace(job, trainer=trainer)
    found = build_slime_arguments(changed, plan_topology(changed))
    for step in range(1, steps + 4):
        expected = find_learning_rate(trainer, step)
        assert megatron_rate(found, (step - 1) * updates) == pytest.approx(expected, rel=1e-4)
