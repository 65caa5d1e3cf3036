"""Write an architecture as Megatron's arguments, the same as in slime's own scripts for it."""

from __future__ import annotations

from conf.sections.architecture import (
    Architecture,
    Experts,
    HybridAttention,
    LatentAttention,
)

Arguments = dict[str, tuple[str, ...]]
"""Flags with their values, in the order in which they are written."""

_SPECS = {
    "glm4": ("slime_plugins.models.glm4", "get_glm_spec"),
    "glm5": ("slime_plugins.models.glm5.glm5", "get_glm5_spec"),
    "minimax_m2": ("slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec"),
    "qwen3_5": ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec"),
    "qwen3_next": ("slime_plugins.models.qwen3_next", "get_qwen3_next_spec"),
}


def megatron_arguments(architecture: Architecture) -> Arguments:
    """Return the model's arguments; those of its layout are not among them."""
    a, experts = architecture, architecture.experts
    ffn = a.dense_ffn or (experts.ffn if experts else 0)
    found: Arguments = {"--spec": _SPECS[a.spec]} if a.spec else {}
    found |= {
        "--num-layers": (str(a.layers),),
        "--hidden-size": (str(a.hidden),),
        "--ffn-hidden-size": (str(ffn),),
        "--vocab-size": (str(a.vocabulary),),
        "--disable-bias-linear": (),
        "--normalization": ("RMSNorm",),
        "--norm-epsilon": (f"{a.norm_epsilon:g}",),
        "--swiglu": (),
        "--position-embedding-type": ("rope",),
        "--rotary-base": (str(a.rotary_base),),
        **_attention_arguments(a),
    }
    if not a.tied:
        found["--untie-embeddings-and-output-weights"] = ()
    if a.spec == "glm4":  # norms before and after attention and feed-forward layer
        plain = ("post-self-attn-layernorm", "post-mlp-layernorm", "rotary-interleaved")
        found |= {f"--{name}": () for name in (*plain, "no-rope-fusion")}
    if a.spec == "minimax_m2" or (isinstance(a.attention, LatentAttention) and a.spec is None):
        found["--no-rope-fusion"] = ()
    if a.spec == "glm5":  # sparse attention; slime's context parallelism for it gathers the keys
        found |= {"--enable-experimental": (), "--allgather-cp": ()}
    return found | (_expert_arguments(a, experts) if experts else {})


def _attention_arguments(a: Architecture) -> Arguments:
    attention = a.attention
    found: Arguments = {"--num-attention-heads": (str(attention.heads),)}
    if isinstance(attention, LatentAttention):
        return found | _latent_arguments(attention)
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
    if attention.llama3_rope:
        found["--use-rope-scaling"] = ()
    return found


def _latent_arguments(latent: LatentAttention) -> Arguments:
    found: Arguments = {
        "--multi-latent-attention": (),
        "--kv-lora-rank": (str(latent.kv_rank),),
        "--qk-head-dim": (str(latent.nope_dim),),
        "--qk-pos-emb-head-dim": (str(latent.rope_dim),),
        "--v-head-dim": (str(latent.value_dim),),
        "--kv-channels": (str(latent.nope_dim),),
        "--qk-layernorm": (),
    }
    if latent.q_rank is not None:
        found["--q-lora-rank"] = (str(latent.q_rank),)
    if latent.yarn is not None:
        found |= {
            "--rotary-scaling-factor": (f"{latent.yarn.factor:g}",),
            "--mscale": (f"{latent.yarn.mscale:g}",),
            "--mscale-all-dim": (f"{latent.yarn.mscale_all_dim:g}",),
        }
    return found


def _expert_arguments(a: Architecture, experts: Experts) -> Arguments:
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
    if experts.groups > 1:
        found |= {
            "--moe-router-num-groups": (str(experts.groups),),
            "--moe-router-group-topk": (str(experts.top_groups),),
        }
    if experts.scaling is not None:
        found["--moe-router-topk-scaling-factor"] = (str(experts.scaling),)
    return found
