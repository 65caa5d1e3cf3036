"""The tiny policy's network: its shape, and initial weights from which it learns in minutes."""

from __future__ import annotations

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

EMBEDDING_STD = 0.2
SHARED_STD = 0.2
"""Standard deviation of one vector added to every embedding: attention by position alone needs a
direction that all tokens share."""
ATTENTION_SCALE = 1.25
"""Weight of the query and key norms; 1 is too flat for a context of hundreds of tokens."""
FIRST_LAYER_SCALE = 2.0
"""The same in the first layer, whose first head has to attend to a single token."""
FREQUENCIES = 6
"""Number of rotary frequencies that the first head uses: the fastest tell neighbours apart."""


def make_network(*, vocabulary: int, context: int, seed: int) -> Qwen3MoeForCausalLM:
    """Return a Qwen3-MoE of about half a million parameters, float32, experts ``grouped_mm``.

    ``context``: longest sequence in tokens. The same arguments give the same weights; the global
    random state is not changed.
    """
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # type: ignore[call-arg]
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        intermediate_size=64,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=context,
        initializer_range=0.08,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network: Qwen3MoeForCausalLM = Qwen3MoeForCausalLM._from_config(  # type: ignore[no-untyped-call]
            config, experts_implementation="grouped_mm"
        )
        embeddings = network.model.embed_tokens.weight
        shared = torch.randn(config.hidden_size)
        embeddings.mul_(EMBEDDING_STD / embeddings.std()).add_(shared * SHARED_STD)
        for layer in network.model.layers:
            layer.self_attn.q_norm.weight.fill_(ATTENTION_SCALE)
            layer.self_attn.k_norm.weight.fill_(ATTENTION_SCALE)
        _look_back(network, shared / shared.norm())
    return network


def _look_back(network: Qwen3MoeForCausalLM, shared: torch.Tensor) -> None:
    """Make the first head attend to the previous token.

    Copying needs such a head in front of one that matches tokens (induction heads, Olsson et al.
    2022, arXiv 2209.11895), and training finds it late, by chance. Keys are one vector for all
    tokens, queries the same vector rotated back by one position, so their product is largest there.
    """
    config = network.config
    half = config.head_dim // 2
    theta = config.rope_parameters["rope_theta"]  # type: ignore[index]
    angles = theta ** (-torch.arange(half) / half)
    used = (torch.arange(half) < FREQUENCIES).float()
    query = torch.cat([used * angles.cos(), -used * angles.sin()])
    key = torch.cat([used, torch.zeros(half)])
    attention = network.model.layers[0].self_attn
    for projection, direction in ((attention.q_proj, query), (attention.k_proj, key)):
        noise = 0.02 * torch.randn(config.head_dim, config.hidden_size)
        projection.weight[: config.head_dim] = torch.outer(direction, shared) + noise
    attention.q_norm.weight.fill_(FIRST_LAYER_SCALE)
    attention.k_norm.weight.fill_(FIRST_LAYER_SCALE)
