"""The architecture of a model that is trained on a cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.section import Section

Count = Annotated[int, Field(ge=0)]


class GroupedAttention(Section):
    """Query heads share key-value heads (GQA, arXiv 2305.13245)."""

    kind: Literal["grouped"]
    heads: PositiveInt
    groups: PositiveInt
    """Key-value heads."""
    head_dim: PositiveInt
    rotary_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's dimensions that are rotated."""
    qk_norm: bool = False
    """RMSNorm on queries and keys."""
    qkv_bias: bool = False
    llama3_rope: bool = False
    """Low frequencies of the rotary embedding are divided by 8 (Llama 3.1, arXiv 2407.21783)."""


class Yarn(Section):
    """The rotary embedding is stretched (YaRN, arXiv 2309.00071)."""

    factor: PositiveFloat
    mscale: float
    mscale_all_dim: float


class LatentAttention(Section):
    """Keys and values are stored as one latent vector (MLA, arXiv 2405.04434)."""

    kind: Literal["latent"]
    heads: PositiveInt
    q_rank: PositiveInt | None = None
    """Rank of the queries' latent; null: queries are not compressed."""
    kv_rank: PositiveInt
    nope_dim: PositiveInt
    """Dimensions of a head that are not rotated."""
    rope_dim: PositiveInt
    """Dimensions of a head that are rotated."""
    value_dim: PositiveInt
    yarn: Yarn | None = None


class HybridAttention(Section):
    """Gated DeltaNet layers (arXiv 2412.06464) with a gated softmax layer at regular intervals."""

    kind: Literal["hybrid"]
    heads: PositiveInt
    groups: PositiveInt
    """Key-value heads of a softmax layer."""
    head_dim: PositiveInt
    rotary_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's dimensions that are rotated."""
    full_every: PositiveInt
    """Every ``full_every``-th layer is a softmax layer."""
    linear_key_heads: PositiveInt
    linear_value_heads: PositiveInt
    linear_head_dim: PositiveInt
    """Dimensions of a linear layer's keys and values."""


Attention = Annotated[
    GroupedAttention | LatentAttention | HybridAttention, Field(discriminator="kind")
]


class Experts(Section):
    """The routed feed-forward layers."""

    number: PositiveInt
    top_k: PositiveInt
    """Experts per token."""
    ffn: PositiveInt
    """Intermediate size of one expert."""
    dense_layers: Count = 0
    """Number of first layers that have one dense feed-forward layer instead."""
    shared_ffn: Count = 0
    """Intermediate size of the expert that sees every token; 0: none."""
    shared_gate: bool = False
    """The shared expert's output is gated."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """sigmoid: with a bias per expert that affects the choice only (arXiv 2408.15664)."""
    scaling: PositiveFloat | None = None
    """Factor on the routed experts' weights; null: none."""
    groups: PositiveInt = 1
    """Groups of experts; a token's experts are in ``top_groups`` of them (arXiv 2412.19437)."""
    top_groups: PositiveInt = 1


class Architecture(Section):
    """The architecture in a checkpoint's ``config.json``."""

    spec: Literal["glm4", "glm5", "minimax_m2", "qwen3_5", "qwen3_next"] | None = None
    """slime's own builder of the layers, a module of ``slime_plugins.models``; null: Megatron's."""
    layers: PositiveInt
    """Transformer layers, without the layer of multi-token prediction."""
    hidden: PositiveInt
    """Width of the residual stream."""
    dense_ffn: PositiveInt | None = None
    """Intermediate size of a dense feed-forward layer; null: the model has none."""
    vocabulary: PositiveInt
    """Rows of the embedding, padding included."""
    rotary_base: PositiveInt = 1_000_000
    """Base of the rotary embedding."""
    norm_epsilon: PositiveFloat = 1e-6
    """Epsilon of the norms."""
    tied: bool = False
    """Embedding and output layer share one matrix."""
    draft_layers: Count = 0
    """Layers of multi-token prediction (MTP, arXiv 2404.19737), with which an engine can draft."""
    attention: Attention
    experts: Experts | None = None
    """null: every layer has one dense feed-forward layer."""
