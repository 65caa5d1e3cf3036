"""Drafts, FP8 and changed weights of engines: in slime's arguments, in the memory, or refused."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from launch.plan import JobPlan, plan_job
from tests.fakes.cluster_config import a_config

DELTA = ("trainer.weight_sync=delta", "trainer.rollout_nodes=4", "trainer.weight_sync_dir=/nvme/w")


def plan(*overrides: str, model: str = "qwen3_30b_a3b") -> JobPlan:
    return plan_job(a_config(*overrides, model=model))


def sampling(found: JobPlan) -> dict[str, float]:
    return dict(found.memory.sampling.parts)


def test_a_model_drafts_with_its_own_layers() -> None:
    plain, drafting = (
        plan(model="glm4_7_flash"),
        plan("model.speculative.steps=3", model="glm4_7_flash"),
    )
    added = {k: v for k, v in drafting.arguments.items() if plain.arguments.get(k) != v}
    assert added == {
        "--sglang-speculative-algorithm": ("EAGLE",),
        "--sglang-speculative-num-steps": ("3",),
        "--sglang-speculative-eagle-topk": ("1",),
        "--sglang-speculative-num-draft-tokens": ("4",),
    }
    assert drafting.conversion == plain.conversion
    # One layer more of 48: its 64 experts of 3 matrices over 8 GPUs, and what is replicated.
    routed = 2 * 64 * 3 * 2048 * 1536 / 8 / 2**30
    assert routed < sampling(drafting)["weights"] - sampling(plain)["weights"] < 1.5 * routed
    assert drafting.memory.cache_tokens < plain.memory.cache_tokens


def test_layers_that_are_trained_along_are_in_the_converted_checkpoint() -> None:
    trained = plan(
        "model.speculative.steps=3", "model.speculative.train_weight=0.2", model="glm4_7_flash"
    )
    assert trained.arguments["--mtp-num-layers"] == trained.conversion["--mtp-num-layers"] == ("1",)
    assert trained.arguments["--mtp-loss-scaling-factor"] == ("0.2",)
    assert trained.arguments["--ref-load"] == ("/shared/weights_mtp_torch_dist",)


def test_a_draft_model_of_its_own_is_loaded() -> None:
    found = plan("model.speculative.steps=2", "model.speculative.path=/shared/eagle").arguments
    assert found["--sglang-speculative-algorithm"] == ("EAGLE3",)
    assert found["--sglang-speculative-draft-model-path"] == ("/shared/eagle",)


def test_engines_load_fp8_and_training_does_not() -> None:
    spread = "model.layout.engine_expert=8"
    plain, small = plan(spread), plan(spread, "model.fp8_path=/shared/fp8")
    assert small.arguments["--hf-checkpoint"] == ("/shared/fp8",)
    assert small.conversion == plain.conversion
    assert small.memory.training == plain.memory.training
    assert sampling(small)["weights"] == pytest.approx(sampling(plain)["weights"] / 2, rel=0.05)
    assert small.memory.cache_tokens > plain.memory.cache_tokens


def test_changed_bytes_reach_engines_by_the_shared_directory() -> None:
    found = plan(*DELTA)
    assert {k: v for k, v in found.arguments.items() if k.startswith("--update-weight")} == {
        "--update-weight-mode": ("delta",),
        "--update-weight-transport": ("disk",),
        "--update-weight-disk-dir": ("/shared/agentrl/weight-updates",),
        "--update-weight-local-checkpoint-dir": ("/nvme/w",),
    }
    # The node of the first rank keeps the last weights: 30.5 billion parameters of two bytes.
    more = found.memory.host_gib - plan("trainer.rollout_nodes=4").memory.host_gib
    assert more == pytest.approx(2 * 30.5e9 / 2**30, rel=0.01)


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("qwen3_30b_a3b", ["model.speculative.steps=3"], "the model has none: set model.specul"),
        (
            "qwen3_6_35b_a3b",
            ["model.speculative.steps=3", "model.speculative.train_weight=0.2"],
            "slime's own layers of qwen3_5 have no such training",
        ),
        (
            "glm4_7_flash",
            ["model.speculative.steps=3", "routing_replay=rollout"],
            "set model.speculative.steps=0, or choose routing_replay=recompute",
        ),
        (
            "glm4_7_flash",
            [
                *("model.speculative.steps=3", "model.speculative.path=/shared/e"),
                "model.speculative.train_weight=0.2",
            ],
            "set one of them only",
        ),
        ("qwen3_30b_a3b", ["model.fp8_path=/shared/fp8"], "an expert of 768 among 8 GPUs"),
        ("qwen3_30b_a3b", ["model.fp8_path=/shared/weights"], "model.fp8_path is model.path"),
        ("qwen3_30b_a3b", ["trainer.weight_sync=delta", DELTA[2]], "trainer.rollout_nodes=0"),
        ("qwen3_30b_a3b", list(DELTA[:2]), "set trainer.weight_sync_dir to a directory"),
        (
            "qwen3_30b_a3b",
            [*DELTA[:2], "trainer.weight_sync_dir=/shared/w"],
            "is within launch.shared_dir",
        ),
        (
            "qwen3_30b_a3b",
            [*DELTA, "trainer.correction.truncate=none"],
            "engines with the first weights for one step",
        ),
    ],
)
def test_what_slime_or_sglang_cannot_do_is_refused_by_name(
    model: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(*overrides, model=model)
    assert any(message in fault for fault in caught.value.faults), caught.value.faults
