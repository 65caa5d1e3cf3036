"""Reading model directories: all layouts, and refusals with a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runners.engines.contract import EngineError
from runners.engines.embedded.weights import ModelWeights, MoeMlp, load_weights, read_config

Json = dict[str, Any]


@pytest.fixture
def copy_dir(model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "copy"))


def edit_config(directory: Path, change: Callable[[Json], Any]) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def same(left: ModelWeights, right: ModelWeights) -> bool:
    first, second = left.layers[1].mlp, right.layers[1].mlp
    assert isinstance(first, MoeMlp)
    assert isinstance(second, MoeMlp)
    return (
        torch.equal(left.embeddings, right.embeddings)
        and torch.equal(left.layers[0].qkv, right.layers[0].qkv)
        and torch.equal(first.gate_up, second.gate_up)
        and torch.equal(first.down, second.down)
    )


def test_fused_expert_tensors_load_like_separate_ones(model_dir: Path, copy_dir: Path) -> None:
    tensors = load_file(copy_dir / "model.safetensors")
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        parts: dict[str, list[torch.Tensor]] = {}
        for expert in range(8):
            for name in ("gate", "up", "down"):
                part = tensors.pop(f"{prefix}{expert}.{name}_proj.weight")
                parts.setdefault(name, []).append(part)
        gate, up, down = (torch.stack(parts[name]) for name in ("gate", "up", "down"))
        tensors[prefix + "gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[prefix + "down_proj"] = down
    save_file(tensors, copy_dir / "model.safetensors")
    assert same(load_weights(copy_dir), load_weights(model_dir))


def test_sharded_files_load_like_one_file(model_dir: Path, copy_dir: Path) -> None:
    tensors = load_file(copy_dir / "model.safetensors")
    (copy_dir / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, copy_dir / shard)
    index = {name: shard for shard, members in shards.items() for name in members}
    (copy_dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert same(load_weights(copy_dir), load_weights(model_dir))


def test_older_config_names_mean_the_same(model_dir: Path, copy_dir: Path) -> None:
    def rename(config: Json) -> None:
        config["num_experts"] = config.pop("num_local_experts")
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]

    edit_config(copy_dir, rename)
    assert read_config(copy_dir) == read_config(model_dir)


def test_eos_ids_come_from_both_config_files(copy_dir: Path) -> None:
    edit_config(copy_dir, lambda config: config.update(eos_token_id=7))
    (copy_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert read_config(copy_dir).eos_token_ids == (7, 9)


def test_dense_layers_follow_both_config_keys(copy_dir: Path) -> None:
    edit_config(
        copy_dir,
        lambda config: config.update(
            num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]
        ),
    )
    assert read_config(copy_dir).moe_layers == (False, True, False, False, False, True)


def test_loaded_weights_survive_the_file_being_overwritten(copy_dir: Path) -> None:
    weights = load_weights(copy_dir)
    kept = weights.embeddings.clone()
    path = copy_dir / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert torch.equal(weights.embeddings, kept)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'.*choose engine=sglang_launch"),
        (
            {"model_type": "qwen3_5_moe", "text_config": {}, "num_attention_heads": None},
            "model_type is 'qwen3_5_moe'",
        ),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": "wide"}, "wide"),
        ({"vocab_size": 801}, "model.embed_tokens.weight"),
        ({"num_hidden_layers": 3}, "model.layers.2"),
        ({"tie_word_embeddings": False}, "lm_head.weight"),
        ({"attention_bias": True}, "q_proj.bias"),
    ],
)
def test_a_model_that_cannot_run_is_refused_with_the_reason(
    copy_dir: Path, change: Json, named: str
) -> None:
    edit_config(copy_dir, lambda config: config.update(change))
    with pytest.raises(EngineError, match=named) as caught:
        load_weights(copy_dir)
    assert caught.value.status == 400


def test_a_config_without_a_required_key_is_refused(copy_dir: Path) -> None:
    edit_config(copy_dir, lambda config: config.pop("num_experts_per_tok"))
    with pytest.raises(EngineError, match="num_experts_per_tok"):
        load_weights(copy_dir)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"{", b"[]"])
def test_a_missing_or_broken_file_is_refused_with_its_name(
    copy_dir: Path, name: str, content: bytes | None
) -> None:
    (copy_dir / name).unlink()
    if content is not None:
        (copy_dir / name).write_bytes(content)
    with pytest.raises(EngineError, match=name):
        load_weights(copy_dir)
