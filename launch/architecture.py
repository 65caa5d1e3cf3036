"""Describe a model of the table: the numbers of its parameters by the parallelism that shards them,
Megatron's arguments for it, and the differences from a checkpoint's ``config.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from conf.sections.moe import (
    Architecture,
    GroupedAttention,
    HybridAttention,
    LatentAttention,
    MoeModel,
)

Arguments = dict[str, tuple[str, ...]]
"""Flags with their values, in the order in which they are written."""


class CheckpointConfigError(AgentrlError):
    """A checkpoint's ``config.json`` is missing or is not that of a model."""

    exit_code = ExitCode.DATA_REFUSED


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters, by the parallelism that shards them.

    Those of the norms are left out: less than 0.01 % of the model.
    """

    attention: int
    """Attention of one layer, averaged over the layers; tensor parallelism."""
    dense: int
    """One dense feed-forward layer; tensor parallelism."""
    shared: int
    """Shared expert and router of one layer; tensor parallelism."""
    routed: int
    """Routed experts of one layer; expert parallelism."""
    embedding: int
    """Embedding, and the output layer again as many; tensor parallelism."""


def count_parameters(architecture: Architecture) -> Parameters:
    """Return the number of parameters of each part."""
    a, experts = architecture, architecture.experts
    return Parameters(
        attention=_attention_parameters(a),
        dense=3 * a.hidden * (a.dense_ffn or 0),
        shared=a.hidden * (3 * experts.shared_ffn + experts.number),
        routed=3 * a.hidden * experts.ffn * experts.number,
        embedding=a.hidden * a.vocabulary,
    )


def total_parameters(architecture: Architecture) -> int:
    """Return the number of parameters of the whole model."""
    found, dense = count_parameters(architecture), architecture.experts.dense_layers
    routed_layers = architecture.layers - dense
    return (
        architecture.layers * found.attention
        + dense * found.dense
        + routed_layers * (found.shared + found.routed)
        + 2 * found.embedding
    )


def _attention_parameters(a: Architecture) -> int:
    match a.attention:
        case GroupedAttention(heads=heads, groups=groups, head_dim=dim):
            return 2 * a.hidden * dim * (heads + groups)
        case LatentAttention() as latent:
            head = latent.nope_dim + latent.rope_dim
            queries = latent.q_rank * (a.hidden + latent.heads * head)
            down = a.hidden * (latent.kv_rank + latent.rope_dim)
            up = latent.kv_rank * latent.heads * (latent.nope_dim + latent.value_dim)
            return queries + down + up + latent.heads * latent.value_dim * a.hidden
        case HybridAttention() as hybrid:
            full = a.hidden * hybrid.head_dim * (3 * hybrid.heads + 2 * hybrid.groups)
            keys = hybrid.linear_key_heads * hybrid.linear_head_dim
            values = hybrid.linear_value_heads * hybrid.linear_head_dim
            linear = a.hidden * (2 * keys + 3 * values + 2 * hybrid.linear_value_heads)
            every = hybrid.full_every
            return (full + (every - 1) * linear) // every


def megatron_arguments(model: MoeModel) -> Arguments:
    """Return Megatron's arguments for the model, the same as in slime's own scripts for it."""
    a = model.architecture
    found: Arguments = {}
    if isinstance(a.attention, HybridAttention):
        found["--spec"] = ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec")
    found |= {
        "--num-layers": (str(a.layers),),
        "--hidden-size": (str(a.hidden),),
        "--ffn-hidden-size": (str(a.dense_ffn or a.experts.ffn),),
        "--vocab-size": (str(a.vocabulary),),
        "--disable-bias-linear": (),
        "--normalization": ("RMSNorm",),
        "--norm-epsilon": (f"{a.norm_epsilon:g}",),
        "--swiglu": (),
        "--untie-embeddings-and-output-weights": (),
        "--position-embedding-type": ("rope",),
        "--rotary-base": (str(a.rotary_base),),
        **_attention_arguments(a),
        **_expert_arguments(a),
    }
    return found


def _attention_arguments(a: Architecture) -> Arguments:
    attention = a.attention
    found: Arguments = {"--num-attention-heads": (str(attention.heads),)}
    if isinstance(attention, LatentAttention):
        return found | {
            "--multi-latent-attention": (),
            "--q-lora-rank": (str(attention.q_rank),),
            "--kv-lora-rank": (str(attention.kv_rank),),
            "--qk-head-dim": (str(attention.nope_dim),),
            "--qk-pos-emb-head-dim": (str(attention.rope_dim),),
            "--v-head-dim": (str(attention.value_dim),),
            "--kv-channels": (str(attention.nope_dim),),
            "--qk-layernorm": (),
            "--no-rope-fusion": (),
        }
    found |= {
        "--group-query-attention": (),
        "--num-query-groups": (str(attention.groups),),
        "--kv-channels": (str(attention.head_dim),),
        "--rotary-percent": (str(attention.rotary_share),),
    }
    if isinstance(attention, HybridAttention):
        plain = ("--qk-layernorm", "--use-gated-attention", "--attention-output-gate")
        return found | dict.fromkeys((*plain, "--apply-layernorm-1p"), ())
    if attention.qk_norm:
        found["--qk-layernorm"] = ()
    if attention.qkv_bias:
        found["--add-qkv-bias"] = ()
    return found


def _expert_arguments(a: Architecture) -> Arguments:
    experts = a.experts
    routed = a.layers - experts.dense_layers
    dense = f"[0]*{experts.dense_layers}+" if experts.dense_layers else ""
    found: Arguments = {
        "--num-experts": (str(experts.number),),
        "--moe-router-topk": (str(experts.top_k),),
        "--moe-ffn-hidden-size": (str(experts.ffn),),
        "--moe-layer-freq": (f"{dense}[1]*{routed}",),
        "--moe-router-score-function": (experts.score,),
        "--moe-router-dtype": ("fp32",),
        "--moe-grouped-gemm": (),
        "--moe-permute-fusion": (),
        "--moe-token-drop-policy": ("probs",),
        "--moe-aux-loss-coeff": ("0",),
    }
    if experts.shared_ffn:
        found["--moe-shared-expert-intermediate-size"] = (str(experts.shared_ffn),)
    if experts.shared_gate:
        found["--moe-shared-expert-gate"] = ()
    if experts.score == "sigmoid":
        found |= {
            "--moe-router-pre-softmax": (),
            "--moe-router-enable-expert-bias": (),
            "--moe-router-bias-update-rate": ("0",),
            "--moe-router-load-balancing-type": ("seq_aux_loss",),
        }
    if experts.scaling not in (None, 1.0):
        found["--moe-router-topk-scaling-factor"] = (str(experts.scaling),)
    return found


def compare_checkpoint(model: MoeModel, config_json: Path) -> list[str]:
    """Return the differences between ``model.architecture`` and a checkpoint's ``config.json``, one
    line per key. Keys that the file does not have are not compared.

    Raises CheckpointConfigError if the file cannot be read, or is not the file of a model.
    """
    try:
        content = json.loads(config_json.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointConfigError(f"model.path: {config_json} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointConfigError(f"model.path: {config_json} does not hold a JSON object")
    text = content.get("text_config") or content
    if "num_hidden_layers" not in text:
        raise CheckpointConfigError(
            f"model.path: {config_json} has no num_hidden_layers: is it the file of a model?"
        )
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return [
        f"{config_json}: {_difference(key, name, value, ours)}"
        for key, names, ours in _expected(model.architecture)
        for name, value in _find_first(names, rope, text, content)
        if value != ours
    ]


def _difference(key: str | None, name: str, value: object, ours: object) -> str:
    if key is None:
        return (
            f"{name}={value}, but Megatron supports only {ours}: this checkpoint cannot be trained"
        )
    fix = "choose the checkpoint of this model, or set that key"
    if isinstance(ours, list):  # an entry per layer
        return f"{name} contradicts model.architecture.{key}: {fix}"
    return f"{name}={value}, but model.architecture.{key}={ours}: {fix}"


def _find_first(names: tuple[str, ...], *places: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the first of ``names`` that one of ``places`` has, with its value."""
    for name in names:
        for place in places:
            if place.get(name) is not None:
                yield name, place[name]
                return


Expected = tuple[str | None, tuple[str, ...], object]
"""A key of ``model.architecture`` (None: Megatron supports no other value), the names that Hugging
Face's model families have for it, and our value.
"""


def _expected(a: Architecture) -> Iterator[Expected]:
    yield "layers", ("num_hidden_layers",), a.layers
    yield "hidden", ("hidden_size",), a.hidden
    yield None, ("hidden_act",), "silu"
    yield "vocabulary", ("vocab_size",), a.vocabulary
    yield "rotary_base", ("rope_theta",), a.rotary_base
    yield None, ("rope_type", "type"), "default"
    yield "norm_epsilon", ("rms_norm_eps",), a.norm_epsilon
    yield None, ("tie_word_embeddings",), False
    yield "attention.heads", ("num_attention_heads",), a.attention.heads
    yield from _expected_experts(a)
    match a.attention:
        case LatentAttention() as latent:
            yield "attention.q_rank", ("q_lora_rank",), latent.q_rank
            yield "attention.kv_rank", ("kv_lora_rank",), latent.kv_rank
            yield "attention.nope_dim", ("qk_nope_head_dim",), latent.nope_dim
            yield "attention.rope_dim", ("qk_rope_head_dim",), latent.rope_dim
            yield "attention.value_dim", ("v_head_dim",), latent.value_dim
        case HybridAttention() as hybrid:
            yield from _expected_groups(hybrid)
            full_every, dim = hybrid.full_every, hybrid.linear_head_dim
            yield "attention.full_every", ("full_attention_interval",), full_every
            kinds = ["linear_attention"] * (full_every - 1) + ["full_attention"]
            layers = [kinds[layer % full_every] for layer in range(a.layers)]
            yield "attention.full_every", ("layer_types",), layers
            yield "attention.linear_key_heads", ("linear_num_key_heads",), hybrid.linear_key_heads
            values = hybrid.linear_value_heads
            yield "attention.linear_value_heads", ("linear_num_value_heads",), values
            yield "attention.linear_head_dim", ("linear_key_head_dim",), dim
            yield "attention.linear_head_dim", ("linear_value_head_dim",), dim
            yield None, ("attn_output_gate",), True
        case GroupedAttention() as grouped:
            yield from _expected_groups(grouped)
            yield "attention.qkv_bias", ("attention_bias",), grouped.qkv_bias
            yield "attention.qk_norm", ("use_qk_norm",), grouped.qk_norm


def _expected_groups(attention: GroupedAttention | HybridAttention) -> Iterator[Expected]:
    yield "attention.groups", ("num_key_value_heads",), attention.groups
    yield "attention.head_dim", ("head_dim",), attention.head_dim
    yield "attention.rotary_share", ("partial_rotary_factor",), attention.rotary_share


def _expected_experts(a: Architecture) -> Iterator[Expected]:
    experts = a.experts
    number = ("num_local_experts", "num_experts", "n_routed_experts")
    yield "experts.number", number, experts.number
    yield "experts.top_k", ("num_experts_per_tok",), experts.top_k
    yield "experts.ffn", ("moe_intermediate_size",), experts.ffn
    yield "experts.score", ("scoring_func",), experts.score
    yield None, ("norm_topk_prob",), True
    yield None, ("n_group",), 1
    yield None, ("topk_group",), 1
    dense, routed = experts.dense_layers, a.layers - experts.dense_layers
    yield "experts.dense_layers", ("first_k_dense_replace",), dense
    kinds = ["dense"] * dense + ["sparse"] * routed
    yield "experts.dense_layers", ("mlp_layer_types",), kinds
    if dense:
        yield "dense_ffn", ("intermediate_size",), a.dense_ffn
    else:
        yield None, ("decoder_sparse_step",), 1
        yield None, ("mlp_only_layers",), []
    yield "experts.shared_ffn", ("shared_expert_intermediate_size",), experts.shared_ffn
    yield "experts.shared_ffn", ("n_shared_experts",), experts.shared_ffn // experts.ffn
    if experts.scaling is not None:
        yield "experts.scaling", ("routed_scaling_factor",), experts.scaling
