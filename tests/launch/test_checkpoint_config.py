"""The model table: sizes are the models', checkpoints agree, and others become architectures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from conf.sections.architecture import Architecture
from conf.sections.cluster_model import TableModel
from launch.checkpoint_config import CheckpointConfigError, compare_checkpoint, convert_config
from launch.parameters import total_parameters
from launch.plan import plan_job
from launch.preflight import find_problems
from tests.fakes.cluster_config import MODELS, a_config

BILLIONS = {
    "qwen2_5_coder_32b": 32.8,
    "qwen3_8b": 8.2,
    "qwen3_32b": 32.8,
    "qwen3_next_80b_a3b": 80,
    "qwen3_30b_a3b": 30.5,
    "qwen3_235b_a22b": 235,
    "qwen3_6_35b_a3b": 35,
    "glm4_5_106b_a12b": 106,
    "glm4_7_355b_a32b": 355,
    "glm4_7_flash": 30,
}
"""Parameter counts that the models' authors publish."""

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_30b_a3b": (
        "qwen3_moe",
        {"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True},
    ),
    "glm4_5_106b_a12b": ("glm4_moe", {"attention_bias": True, "head_dim": 128}),
    "glm4_7_flash": ("glm4_moe_lite", {"first_k_dense_replace": 1}),
    "qwen3_6_35b_a3b": ("qwen3_5_moe_text", {}),
}
"""transformers' families, and where their defaults are not the model."""

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("published_configs.json").read_text("utf-8")
)
"""Keys of the published ``config.json`` files that describe the architecture."""


def table(kind: str) -> Architecture:
    model = a_config(model=kind).model
    assert isinstance(model, TableModel)
    return model.architecture


@pytest.mark.parametrize("kind", MODELS)
def test_the_parts_of_a_model_add_up_to_its_name(kind: str) -> None:
    billions = total_parameters(table(kind)) / 1e9
    assert billions == pytest.approx(BILLIONS[kind], rel=0.015)


def config_json(kind: str, folder: Path, **changes: object) -> Path:
    family, known = FAMILIES[kind]
    config: PretrainedConfig = AutoConfig.for_model(family, **known)
    said = config.to_dict()
    rope = said["rope_parameters"] | {"rope_theta": table(kind).rotary_base}
    file = folder / "config.json"
    file.write_text(json.dumps(said | {"rope_parameters": rope} | changes), "utf-8")
    return file


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_table_agrees_with_the_configs_of_transformers(kind: str, tmp_path: Path) -> None:
    assert compare_checkpoint(table(kind), config_json(kind, tmp_path)) == []


def test_a_checkpoint_of_another_model_is_reported_key_by_key(tmp_path: Path) -> None:
    file = config_json("qwen3_30b_a3b", tmp_path, num_hidden_layers=94, moe_intermediate_size=1536)
    found = compare_checkpoint(table("qwen3_30b_a3b"), file)
    assert [line.partition(" says ")[2].partition(":")[0] for line in found] == [
        "1536, but model.architecture.experts.ffn=768",
        "94, but model.architecture.layers=48",
    ]


def test_a_text_model_within_a_larger_one_is_compared(tmp_path: Path) -> None:
    file = config_json("qwen3_6_35b_a3b", tmp_path)
    text = json.loads(file.read_text()) | {"hidden_size": 1}
    file.write_text(json.dumps({"model_type": "qwen3_5_moe", "text_config": text}))
    (found,) = compare_checkpoint(table("qwen3_6_35b_a3b"), file)
    assert "says 1, but model.architecture.hidden=2048" in found


def test_the_table_is_what_the_converter_makes_of_the_published_configs() -> None:
    assert {kind: convert_config(PUBLISHED[kind]) for kind in MODELS} == {
        kind: table(kind) for kind in MODELS
    }


@pytest.mark.parametrize(
    ("kind", "change", "key"),
    [
        ("qwen3_30b_a3b", {"rope_theta": 10000000.0}, "rotary_base=1000000"),
        ("qwen3_30b_a3b", {"first_k_dense_replace": 1}, "experts.dense_layers=0"),
        ("qwen3_8b", {"tie_word_embeddings": True}, "tied=False"),
        ("glm4_7_355b_a32b", {"first_k_dense_replace": 1}, "experts.dense_layers=3"),
        ("glm4_7_355b_a32b", {"routed_scaling_factor": 1.0}, "experts.scaling=2.5"),
        ("glm4_7_355b_a32b", {"n_group": 8}, "experts.groups=1"),
        ("glm4_5_106b_a12b", {"use_qk_norm": True}, "attention.qk_norm=False"),
        ("glm4_5_106b_a12b", {"attention_bias": False}, "attention.qkv_bias=True"),
        ("glm4_7_flash", {"q_lora_rank": 1536}, "attention.q_rank=768"),
        ("glm4_7_flash", {"v_head_dim": 128}, "attention.value_dim=256"),
        ("qwen3_next_80b_a3b", {"full_attention_interval": 3}, "attention.full_every=4"),
    ],
)
def test_every_difference_names_the_table_s_key(
    kind: str, change: dict[str, Any], key: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[kind] | change), "utf-8")
    (found,) = compare_checkpoint(table(kind), tmp_path / "config.json")
    assert f"model.architecture.{key}" in found


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("qwen3_8b", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type=yarn"),
        ("qwen3_8b", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "type=yarn"),
        ("qwen3_8b", {"attention_bias": True}, "attention_bias=True"),
        ("qwen3_8b", {"use_sliding_window": True}, "use_sliding_window=True"),
        ("qwen3_8b", {"hidden_act": "gelu"}, "hidden_act=gelu"),
        ("qwen3_8b", {"model_type": "mamba"}, "model_type=mamba is none of the families"),
        ("qwen3_8b", {"hidden_size": "wide"}, "wrong type"),
        ("qwen3_8b", {"quantization_config": {"quant_method": "fp8"}}, "with model.fp8_path"),
        ("qwen3_8b", {"rms_norm_eps": None}, "has no rms_norm_eps"),
        ("qwen3_30b_a3b", {"mlp_only_layers": [0]}, "mlp_only_layers=.0., but Megatron"),
        ("qwen3_30b_a3b", {"norm_topk_prob": False}, "norm_topk_prob=False"),
        ("glm4_7_flash", {"mlp_layer_types": ["sparse", "dense"]}, "dense layers are the first"),
        ("glm4_7_flash", {"scoring_func": "softmax"}, "scoring_func=softmax"),
        (
            "qwen3_next_80b_a3b",
            {"layer_types": ["full_attention"] * 48},
            "layer_types is not softmax attention in every layer 4",
        ),
        ("qwen3_next_80b_a3b", {"linear_value_head_dim": 64}, "linear_value_head_dim=64"),
    ],
)
def test_what_slime_cannot_train_is_refused(
    kind: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        convert_config(PUBLISHED[kind] | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 0, "head_dim": None}, "a value is impossible"),
        ({"num_hidden_layers": float("inf")}, "a value is impossible"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers=100000000 is too large"),
        ({"num_hidden_layers": -4}, "Architecture.layers=-4 must be greater than 0"),
        ({"hidden_size": 5120.5}, "hidden_size=5120.5 is not a whole number"),
        ({"hidden_size": True}, "hidden_size=True is not a whole number"),
        ({"vocab_size": "151936"}, "vocab_size='151936' is not a whole number"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps='1e-6' is not a number"),
        ({"rms_norm_eps": True}, "rms_norm_eps=True is not a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan is not finite"),
        ({"partial_rotary_factor": "0.5"}, "partial_rotary_factor='0.5' is not a number"),
        ({"rotary_dim": "64"}, "rotary_dim='64' is not a number"),
        ({"num_key_value_heads": 7}, "num_attention_heads=32 is no multiple of .*=7"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings=no is neither true nor false"),
        ({"text_config": ["num_hidden_layers"]}, "text_config does not hold"),
        ({"rope_scaling": "yarn"}, "rope_scaling does not hold"),
        ({"text_config": PUBLISHED["qwen3_8b"] | {"rope_parameters": [1]}}, "rope_parameters does"),
    ],
)
def test_a_config_json_with_an_impossible_value_is_a_clear_error(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        convert_config(PUBLISHED["qwen3_8b"] | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 300}, "num_experts_per_tok=300 of 160 experts"),
        ({"first_k_dense_replace": 99}, "first_k_dense_replace=99 of num_hidden_layers=92"),
        ({"n_group": 4, "topk_group": 8}, "topk_group=8 of n_group=4 groups of 160 experts"),
        ({"n_group": 7, "topk_group": 1}, "n_group=7 groups of 160 experts"),
    ],
)
def test_experts_that_contradict_one_another_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        convert_config(PUBLISHED["glm4_7_355b_a32b"] | change)


def test_a_model_within_one_that_slime_does_not_know_is_refused() -> None:
    with pytest.raises(CheckpointConfigError, match="model_type=kimi_k25 is none"):
        convert_config({"model_type": "kimi_k25", "text_config": PUBLISHED["qwen3_8b"]})


CHECKPOINT = ("model.renderer=qwen3", "model.layout.tensor=2", "run.steps=2")


def test_a_checkpoint_of_one_s_own_becomes_a_job(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["qwen3_8b"]), "utf-8")
    own = plan_job(a_config(*CHECKPOINT, f"model.path={tmp_path}", model="checkpoint"))
    assert own.arguments["--num-layers"] == ("36",)
    assert own.conversion["--hf-checkpoint"] == (str(tmp_path),)
    assert "--num-experts" not in own.arguments
    assert "--rollout-stop-token-ids" not in own.arguments
    assert own.job.architecture == table("qwen3_8b")


def test_a_checkpoint_that_only_the_nodes_have_is_planned_by_its_config_json(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointConfigError, match=r"name it with model\.config"):
        plan_job(a_config(*CHECKPOINT, model="checkpoint"))
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(PUBLISHED["glm4_7_flash"]), "utf-8")
    layout = ["model.layout.tensor=4", "model.layout.expert=8"]  # of 20 heads and 64 experts
    layout += ["model.layout.engine_data=8", f"model.config={file}"]
    found = plan_job(a_config(*CHECKPOINT, *layout, model="checkpoint"))
    assert found.job.architecture == table("glm4_7_flash")


def test_a_config_json_that_is_not_a_model_s_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": []}')
    with pytest.raises(CheckpointConfigError, match="has no num_hidden_layers"):
        compare_checkpoint(table("qwen3_30b_a3b"), tmp_path / "config.json")


def test_a_broken_config_json_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for content in ("{", "", "[" * 100_000):
        file.write_text(content)
        with pytest.raises(CheckpointConfigError, match="cannot be read"):
            compare_checkpoint(table("qwen3_30b_a3b"), file)


def test_the_pre_flight_compares_a_checkpoint_that_is_here(tmp_path: Path) -> None:
    config_json("qwen3_30b_a3b", tmp_path, num_hidden_layers=47)
    config = a_config(f"model.path={tmp_path}")
    fatal = [p.message for p in find_problems(config, tmp_path / "run") if p.fatal]
    assert any("says 47, but model.architecture.layers=48" in message for message in fatal)
