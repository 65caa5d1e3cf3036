"""The model table: Megatron's arguments are slime's, sizes are the models', checkpoints agree."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from conf.sections.moe import MoeModel
from launch import flags
from launch.architecture import (
    CheckpointConfigError,
    compare_checkpoint,
    megatron_arguments,
    total_parameters,
)
from launch.preflight import find_problems
from tests.fakes.cluster_config import MODELS, a_config

SLIME = {
    "qwen3_30b_a3b": "--disable-bias-linear --qk-layernorm --group-query-attention "
    "--num-attention-heads 32 --num-query-groups 4 --kv-channels 128 --num-layers 48 "
    "--hidden-size 2048 --ffn-hidden-size 6144 --normalization RMSNorm "
    "--position-embedding-type rope --norm-epsilon 1e-6 --rotary-percent 1.0 --swiglu "
    "--untie-embeddings-and-output-weights --vocab-size 151936 --rotary-base 1000000 "
    "--moe-ffn-hidden-size 768 --moe-router-score-function softmax --moe-router-topk 8 "
    "--moe-layer-freq [1]*48 --num-experts 128 --moe-grouped-gemm --moe-token-drop-policy probs "
    "--moe-router-dtype fp32 --moe-permute-fusion --moe-aux-loss-coeff 0",
    "qwen3_6_35b_a3b": "--spec slime_plugins.models.qwen3_5 get_qwen3_5_spec "
    "--disable-bias-linear --qk-layernorm --group-query-attention --num-attention-heads 16 "
    "--num-query-groups 2 --kv-channels 256 --num-layers 40 --hidden-size 2048 "
    "--ffn-hidden-size 512 --use-gated-attention --normalization RMSNorm --apply-layernorm-1p "
    "--position-embedding-type rope --norm-epsilon 1e-6 --rotary-percent 0.25 --swiglu "
    "--untie-embeddings-and-output-weights --vocab-size 248320 --rotary-base 10000000 "
    "--moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512 "
    "--moe-router-score-function softmax --moe-router-topk 8 --moe-layer-freq [1]*40 "
    "--num-experts 256 --moe-grouped-gemm --moe-token-drop-policy probs --moe-router-dtype fp32 "
    "--moe-permute-fusion --moe-aux-loss-coeff 0 --attention-output-gate --moe-shared-expert-gate",
    "glm4_7_355b_a32b": "--disable-bias-linear --qk-layernorm --group-query-attention "
    "--num-attention-heads 96 --num-query-groups 8 --kv-channels 128 --num-layers 92 "
    "--hidden-size 5120 --ffn-hidden-size 12288 --add-qkv-bias --normalization RMSNorm "
    "--position-embedding-type rope --rotary-percent 0.5 --swiglu "
    "--untie-embeddings-and-output-weights --vocab-size 151552 --rotary-base 1000000 "
    "--moe-ffn-hidden-size 1536 --moe-shared-expert-intermediate-size 1536 "
    "--moe-router-pre-softmax --moe-router-score-function sigmoid --moe-router-enable-expert-bias "
    "--moe-router-bias-update-rate 0 --moe-router-load-balancing-type seq_aux_loss "
    "--moe-router-topk 8 --moe-router-topk-scaling-factor 2.5 --moe-layer-freq [0]*3+[1]*89 "
    "--num-experts 160 --moe-grouped-gemm --moe-router-dtype fp32 --moe-permute-fusion "
    "--moe-aux-loss-coeff 0 --norm-epsilon 1e-5 --moe-token-drop-policy probs",
}
"""slime's own scripts; GLM's leave out two flags, whose defaults stand last here."""

BILLIONS = {
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


def model_of(kind: str) -> MoeModel:
    model = a_config(model=kind).model
    assert isinstance(model, MoeModel)
    return model


def values(words: str) -> dict[str, tuple[object, ...]]:
    found, faults = flags.parse(shlex.split(words))
    assert not faults
    return {name: tuple(map(number, given)) for name, given in found.items()}


def number(word: str) -> object:
    try:
        return float(word)
    except ValueError:
        return word


@pytest.mark.parametrize("kind", SLIME)
def test_megatron_s_arguments_are_those_of_slime_s_scripts(kind: str) -> None:
    ours = megatron_arguments(model_of(kind))
    assert values(shlex.join(flags.to_words(ours))) == values(SLIME[kind])


@pytest.mark.parametrize("kind", MODELS)
def test_the_parts_of_a_model_add_up_to_its_name(kind: str) -> None:
    billions = total_parameters(model_of(kind).architecture) / 1e9
    assert billions == pytest.approx(BILLIONS[kind], rel=0.015)


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_s_arguments_are_flags(kind: str) -> None:
    assert flags.check(megatron_arguments(model_of(kind))) == []


def config_json(kind: str, folder: Path, **changes: object) -> Path:
    family, known = FAMILIES[kind]
    config: PretrainedConfig = AutoConfig.for_model(family, **known)
    said = config.to_dict()
    rope = said["rope_parameters"] | {"rope_theta": model_of(kind).architecture.rotary_base}
    file = folder / "config.json"
    file.write_text(json.dumps(said | {"rope_parameters": rope} | changes), "utf-8")
    return file


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_table_agrees_with_the_configs_of_transformers(kind: str, tmp_path: Path) -> None:
    assert compare_checkpoint(model_of(kind), config_json(kind, tmp_path)) == []


def test_a_checkpoint_of_another_model_is_reported_key_by_key(tmp_path: Path) -> None:
    file = config_json("qwen3_30b_a3b", tmp_path, num_hidden_layers=94, moe_intermediate_size=1536)
    found = compare_checkpoint(model_of("qwen3_30b_a3b"), file)
    assert [line.partition(": ")[2].partition(",")[0] for line in found] == [
        "num_hidden_layers=94",
        "moe_intermediate_size=1536",
    ]


def test_a_text_model_within_a_larger_one_is_compared(tmp_path: Path) -> None:
    file = config_json("qwen3_6_35b_a3b", tmp_path)
    file.write_text(json.dumps({"text_config": json.loads(file.read_text()) | {"hidden_size": 1}}))
    (found,) = compare_checkpoint(model_of("qwen3_6_35b_a3b"), file)
    assert "hidden_size=1, but model.architecture.hidden=2048" in found


@pytest.mark.parametrize("kind", MODELS)
def test_the_table_agrees_with_the_published_configs(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[kind]), "utf-8")
    assert compare_checkpoint(model_of(kind), tmp_path / "config.json") == []


@pytest.mark.parametrize(
    ("kind", "change", "line"),
    [
        ("qwen3_30b_a3b", {"rope_theta": 10000000.0}, "model.architecture.rotary_base=1000000"),
        ("qwen3_30b_a3b", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type=yarn"),
        ("qwen3_30b_a3b", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "type=yarn"),
        ("qwen3_30b_a3b", {"mlp_only_layers": [0]}, "mlp_only_layers=[0], but Megatron supports"),
        (
            "qwen3_30b_a3b",
            {"first_k_dense_replace": 1},
            "model.architecture.experts.dense_layers=0",
        ),
        ("qwen3_235b_a22b", {"tie_word_embeddings": True}, "tie_word_embeddings=True"),
        ("glm4_7_355b_a32b", {"first_k_dense_replace": 1}, "experts.dense_layers=3"),
        ("glm4_7_355b_a32b", {"routed_scaling_factor": 1.0}, "experts.scaling=2.5"),
        ("glm4_7_355b_a32b", {"n_group": 8}, "n_group=8, but Megatron supports only 1"),
        ("glm4_5_106b_a12b", {"use_qk_norm": True}, "attention.qk_norm=False"),
        ("glm4_7_flash", {"q_lora_rank": 1536}, "attention.q_rank=768"),
        ("glm4_7_flash", {"v_head_dim": 128}, "attention.value_dim=256"),
        (
            "glm4_7_flash",
            {"mlp_layer_types": ["sparse"] * 47},
            "contradicts model.architecture.experts.dense_layers",
        ),
    ],
)
def test_every_difference_names_the_table_s_key(
    kind: str, change: dict[str, Any], line: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[kind] | change), "utf-8")
    (found,) = compare_checkpoint(model_of(kind), tmp_path / "config.json")
    assert line in found


@pytest.mark.parametrize(
    ("where", "change", "line"),
    [
        ("text_config", {"full_attention_interval": 3}, "attention.full_every=4"),
        (
            "text_config",
            {"layer_types": ["full_attention"] * 40},
            "contradicts model.architecture.attention.full_every",
        ),
        ("text_config", {"linear_value_head_dim": 64}, "attention.linear_head_dim=128"),
        ("rope_parameters", {"partial_rotary_factor": 0.5}, "attention.rotary_share=0.25"),
        ("top", {"tie_word_embeddings": True}, "tie_word_embeddings=True"),
    ],
)
def test_a_nested_config_json_is_compared(
    where: str, change: dict[str, Any], line: str, tmp_path: Path
) -> None:
    said = json.loads(json.dumps(PUBLISHED["qwen3_6_35b_a3b"]))
    text = said["text_config"]
    {"top": said, "text_config": text, "rope_parameters": text["rope_parameters"]}[where].update(
        change
    )
    (tmp_path / "config.json").write_text(json.dumps(said), "utf-8")
    (found,) = compare_checkpoint(model_of("qwen3_6_35b_a3b"), tmp_path / "config.json")
    assert line in found


def test_a_config_json_that_is_not_a_model_s_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": []}')
    with pytest.raises(CheckpointConfigError, match="has no num_hidden_layers"):
        compare_checkpoint(model_of("qwen3_30b_a3b"), tmp_path / "config.json")


def test_a_broken_config_json_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{")
    with pytest.raises(CheckpointConfigError, match="cannot be read"):
        compare_checkpoint(model_of("qwen3_30b_a3b"), file)


def test_the_pre_flight_compares_a_checkpoint_that_is_here(tmp_path: Path) -> None:
    config_json("qwen3_30b_a3b", tmp_path, num_hidden_layers=47)
    config = a_config(f"model.path={tmp_path}")
    fatal = [p.message for p in find_problems(config, tmp_path / "run") if p.fatal]
    assert any("num_hidden_layers=47" in message for message in fatal)
