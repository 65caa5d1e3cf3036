"""Count a model's parameters, by the parallelism that shards them."""

from __future__ import annotations

from dataclasses import dataclass

from conf.sections.architecture import (
    Architecture,
    GroupedAttention,
    HybridAttention,
    LatentAttention,
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters, by the parallelism that shards them.

    Those of the norms, of biases and of GLM-5's indexer are left out: about 0.1 % of a model at
    most.
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
    """Embedding, and the output layer, if it is not tied, again as many; tensor parallelism."""
    dense_layers: int
    """Number of layers with a dense feed-forward layer; the others have experts."""
    matrices: int
    """2, or 1 if embedding and output layer are one matrix."""


def count_parameters(architecture: Architecture) -> Parameters:
    """Return the number of parameters of each part."""
    a, experts = architecture, architecture.experts
    return Parameters(
        attention=_attention_parameters(a),
        dense=3 * a.hidden * (a.dense_ffn or 0),
        shared=a.hidden * (3 * experts.shared_ffn + experts.number) if experts else 0,
        routed=3 * a.hidden * experts.ffn * experts.number if experts else 0,
        embedding=a.hidden * a.vocabulary,
        dense_layers=experts.dense_layers if experts else a.layers,
        matrices=1 if a.tied else 2,
    )


def total_parameters(architecture: Architecture) -> int:
    """Return the number of parameters of the whole model, without multi-token prediction."""
    found = count_parameters(architecture)
    routed_layers = architecture.layers - found.dense_layers
    return (
        architecture.layers * found.attention
        + found.dense_layers * found.dense
        + routed_layers * (found.shared + found.routed)
        + found.matrices * found.embedding
    )


def _attention_parameters(a: Architecture) -> int:
    match a.attention:
        case GroupedAttention(heads=heads, groups=groups, head_dim=dim):
            return 2 * a.hidden * dim * (heads + groups)
        case LatentAttention() as latent:
            head = latent.nope_dim + latent.rope_dim
            if latent.q_rank is None:
                queries = a.hidden * latent.heads * head
            else:
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
