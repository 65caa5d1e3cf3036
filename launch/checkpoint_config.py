"""Read a model's architecture from a checkpoint's ``config.json``, by its family.

A key that Megatron or slime cannot follow is refused: the checkpoint would train as another model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from conf.error_messages import explain_errors
from conf.errors import AgentrlError, ExitCode
from conf.keys import flatten
from conf.sections.architecture import (
    Architecture,
    Experts,
    GroupedAttention,
    HybridAttention,
    LatentAttention,
    Yarn,
)
from launch.config_keys import ConfigKeys
from launch.families import FAMILIES, WRAPPERS, Family

_YARN_LENGTH = 4096
"""Megatron's original context length of YaRN, which slime leaves as it is."""
_LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Megatron's own; slime gives it no other factor (``model_provider.py``)."""
_LAYERS = 10_000
"""A bound, since anybody may have written the file."""


class CheckpointConfigError(AgentrlError):
    """A checkpoint's ``config.json`` is missing, is not a model's, or cannot be trained."""

    exit_code = ExitCode.DATA_REFUSED


def read_architecture(config_json: Path) -> Architecture:
    """Return the architecture that a ``config.json`` describes.

    Raises CheckpointConfigError if the file cannot be read, is of a family that slime does not
    train, or has keys that Megatron cannot follow; all of them are named.
    """
    try:
        content = json.loads(config_json.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointConfigError(f"{config_json} cannot be read: {error}") from error
    try:
        return convert_config(content)
    except CheckpointConfigError as error:
        raise CheckpointConfigError(f"{config_json}: {error}") from error


def compare_checkpoint(architecture: Architecture, config_json: Path) -> list[str]:
    """Return the differences between ``model.architecture`` and a checkpoint's ``config.json``, one
    line per key; raises what ``read_architecture`` does.
    """
    found = read_architecture(config_json)
    ours, theirs = (dict(flatten(each.model_dump(mode="json"))) for each in (architecture, found))
    return [
        f"{config_json} says {theirs.get(key)}, but model.architecture.{key}={ours.get(key)}: "
        "choose the checkpoint of this model, set that key, or choose model=checkpoint"
        for key in sorted(ours.keys() | theirs.keys())
        # transformers saves a model without its layers of multi-token prediction
        if ours.get(key) != theirs.get(key) and key != "draft_layers"
    ]


def convert_config(content: object) -> Architecture:
    """Return the architecture of a parsed ``config.json``; raises CheckpointConfigError."""
    if not isinstance(content, dict):
        raise CheckpointConfigError("it does not hold a JSON object")
    for place in (content, content.get("text_config") or {}):
        for key in ("text_config", "rope_parameters", "rope_scaling"):
            if isinstance(place, dict) and not isinstance(place.get(key) or {}, dict):
                raise CheckpointConfigError(f"{key} does not hold a JSON object")
    text = content.get("text_config") or content
    if "num_hidden_layers" not in text:
        raise CheckpointConfigError("it has no num_hidden_layers: is it the file of a model?")
    kind = str(text.get("model_type"))
    wrapper = str(content.get("model_type") or kind)
    if kind not in FAMILIES or (text is not content and wrapper not in WRAPPERS):
        raise CheckpointConfigError(
            f"model_type={wrapper if kind in FAMILIES else kind} is none of the families that "
            f"slime trains: {', '.join(sorted(FAMILIES))}"
        )
    config = _Config(text, content, FAMILIES[kind])
    try:
        found = config.architecture()
    except KeyError as error:
        raise CheckpointConfigError(f"it has no {error.args[0]}") from error
    except ValidationError as error:
        by_key, between = explain_errors(error, {})
        told = "; ".join([*by_key.values(), *between])
        raise CheckpointConfigError(f"a value is impossible: {error.title}.{told}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointConfigError(f"a value has the wrong type: {error}") from error
    except ArithmeticError as error:  # 0 heads, an infinite size
        raise CheckpointConfigError(f"a value is impossible: {error}") from error
    if config.faults:
        raise CheckpointConfigError("; ".join(config.faults))
    return found


class _Config(ConfigKeys):
    """The keys of a ``config.json`` and what they mean in a family."""

    def __init__(self, text: Mapping[str, Any], whole: Mapping[str, Any], family: Family) -> None:
        super().__init__(text)
        self.whole, self.family = whole, family

    def architecture(self) -> Architecture:
        """Return the architecture."""
        self.require("hidden_act", "silu")
        if self.whole.get("quantization_config"):
            self.faults.append(
                "quantization_config: training starts from bfloat16: name that checkpoint with "
                "model.path, and the quantised one with model.fp8_path"
            )
        self.require("use_sliding_window", False)
        experts = self._experts() if self.family.experts else None
        has_dense = experts is None or experts.dense_layers or self.family.dense_ffn
        tied = self.whole.get("tie_word_embeddings", self.text.get("tie_word_embeddings", False))
        layers = self.count("num_hidden_layers")
        if layers > _LAYERS:
            raise ValueError(f"num_hidden_layers={layers} is too large")
        dense = experts.dense_layers if experts else 0
        self.check(
            fails=dense > layers,
            fault=f"first_k_dense_replace={dense} of num_hidden_layers={layers} layers",
        )
        return Architecture(
            spec=self.family.spec,
            layers=layers,
            hidden=self.count("hidden_size"),
            dense_ffn=self.count("intermediate_size") if has_dense else None,
            vocabulary=self.count("vocab_size"),
            rotary_base=self.count("rope_theta"),
            norm_epsilon=self.number("rms_norm_eps"),
            tied=self.flag("tie_word_embeddings", tied),
            draft_layers=self.count(
                "num_nextn_predict_layers",
                "mtp_num_hidden_layers",
                default=self.family.draft_layers,
            ),
            attention=self._attention(),
            experts=experts,
        )

    def _attention(self) -> GroupedAttention | LatentAttention | HybridAttention:
        match self.family.attention:
            case "latent":
                return self._latent()
            case "hybrid":
                return self._hybrid()
        return self._grouped()

    def _groups(self) -> dict[str, Any]:
        heads, share = self.count("num_attention_heads"), self.family.rotary_share
        dim = self.count("head_dim", default=self.count("hidden_size") // heads)
        if self.text.get("rotary_dim") is not None:
            share = self.number("rotary_dim") / dim
        groups = self.count("num_key_value_heads", default=heads)
        self.check(
            fails=bool(heads % groups),
            fault=f"num_attention_heads={heads} is no multiple of num_key_value_heads={groups}",
        )
        return {
            "heads": heads,
            "groups": groups,
            "head_dim": dim,
            "rotary_share": self.number("partial_rotary_factor", default=share),
        }

    def _grouped(self) -> GroupedAttention:
        family = self.family
        bias, norm = family.qkv_bias, family.qk_norm
        if bias is None:
            bias = self.flag("attention_bias", self.first("attention_bias", default=False))
        else:  # such a family's key is for the output's bias as well, which Megatron lacks
            self.require("attention_bias", bias)
        if norm is None:
            norm = self.flag("use_qk_norm", self.first("use_qk_norm", default=False))
        return GroupedAttention(
            kind="grouped",
            **self._groups(),
            qk_norm=norm,
            qkv_bias=bias,
            llama3_rope=self._rope("default", "llama3") == "llama3",
        )

    def _rope(self, *kinds: str) -> str:
        """Return the kind of the rotary embedding, one of ``kinds``."""
        self.require("rope_type", *kinds)
        self.require("type", *kinds)
        kind = str(self.rope.get("rope_type") or self.rope.get("type") or "default")
        if kind == "llama3":
            for name, value in _LLAMA3_ROPE.items():
                self.require(name, value)
        return kind

    def _latent(self) -> LatentAttention:
        yarn = None
        if self._rope("default", "yarn") == "yarn":
            self.require("original_max_position_embeddings", _YARN_LENGTH)
            self.require("beta_fast", 32)
            self.require("beta_slow", 1)
            factor, scale = self.number("factor"), self.number("mscale", default=1.0)
            everywhere = self.number("mscale_all_dim", default=0.0)
            yarn = Yarn(factor=factor, mscale=scale, mscale_all_dim=everywhere)
        self.require("attention_bias", False)
        rank = self.text.get("q_lora_rank")
        return LatentAttention(
            kind="latent",
            heads=self.count("num_attention_heads"),
            q_rank=None if rank is None else self.count("q_lora_rank"),
            kv_rank=self.count("kv_lora_rank"),
            nope_dim=self.count("qk_nope_head_dim"),
            rope_dim=self.count("qk_rope_head_dim"),
            value_dim=self.count("v_head_dim"),
            yarn=yarn,
        )

    def _hybrid(self) -> HybridAttention:
        self._rope("default")
        self.require("attention_bias", False)
        self.require("attn_output_gate", True)
        layers, dim = self.count("num_hidden_layers"), self.count("linear_key_head_dim")
        self.require("linear_value_head_dim", dim)
        every = self.count("full_attention_interval", default=4)
        kinds = ["linear_attention"] * (every - 1) + ["full_attention"]
        if self.first("layer_types", default=kinds * layers)[:layers] != (kinds * layers)[:layers]:
            self.faults.append(f"layer_types is not softmax attention in every layer {every}")
        return HybridAttention(
            kind="hybrid",
            **self._groups(),
            full_every=every,
            linear_key_heads=self.count("linear_num_key_heads"),
            linear_value_heads=self.count("linear_num_value_heads"),
            linear_head_dim=dim,
        )

    def _experts(self) -> Experts:
        self.require("decoder_sparse_step", 1)
        self.require("moe_layer_freq", 1)
        self.require("mlp_only_layers", [])
        self.require("norm_topk_prob", True)
        self.require("topk_method", "noaux_tc")
        score: Literal["softmax", "sigmoid"] = self.family.experts or "softmax"
        self.require("scoring_func", score)
        ffn = self.count("moe_intermediate_size", default=self.text.get("intermediate_size"))
        shared = self.count(
            "shared_expert_intermediate_size",
            default=ffn * self.count("n_shared_experts", default=0),
        )
        scaling = self.number("routed_scaling_factor", default=1.0)
        number = self.count("num_local_experts", "num_experts", "n_routed_experts")
        top_k = self.count("num_experts_per_tok")
        self.check(fails=top_k > number, fault=f"num_experts_per_tok={top_k} of {number} experts")
        groups, top = self.count("n_group", default=1), self.count("topk_group", default=1)
        self.check(
            fails=top > groups or bool(number % groups),
            fault=f"topk_group={top} of n_group={groups} groups of {number} experts",
        )
        return Experts(
            number=number,
            top_k=top_k,
            ffn=ffn,
            dense_layers=self._dense_layers(),
            shared_ffn=shared,
            shared_gate=score == "softmax" and shared > 0,
            score=score,
            scaling=None if scaling == 1 else scaling,
            groups=groups,
            top_groups=top,
        )

    def _dense_layers(self) -> int:
        """Return the number of first layers that are dense; a fault unless those are all."""
        kinds = self.text.get("mlp_layer_types")
        count = self.text.get("first_k_dense_replace")
        if kinds is None:
            return self.count("first_k_dense_replace", default=0)
        dense = list(kinds).count("dense")
        if list(kinds) != ["dense"] * dense + ["sparse"] * (len(kinds) - dense) or (
            count is not None and count != dense
        ):
            self.faults.append("mlp_layer_types: Megatron's dense layers are the first ones")
        return dense
