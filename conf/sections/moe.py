"""Models that are trained on a cluster: their architecture, and their layout over GPUs."""

from __future__ import annotations

from pathlib import Path
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
    rotary_share: Annotated[float, Field(gt=0, le=1)]
    """Share of a head's dimensions that are rotated."""
    qk_norm: bool
    """RMSNorm on queries and keys."""
    qkv_bias: bool


class LatentAttention(Section):
    """Keys and values are stored as one latent vector (MLA, arXiv 2405.04434)."""

    kind: Literal["latent"]
    heads: PositiveInt
    q_rank: PositiveInt
    kv_rank: PositiveInt
    nope_dim: PositiveInt
    """Dimensions of a head that are not rotated."""
    rope_dim: PositiveInt
    """Dimensions of a head that are rotated."""
    value_dim: PositiveInt


class HybridAttention(Section):
    """Gated DeltaNet layers (arXiv 2412.06464) with a gated softmax layer at regular intervals."""

    kind: Literal["hybrid"]
    heads: PositiveInt
    groups: PositiveInt
    """Key-value heads of a softmax layer."""
    head_dim: PositiveInt
    rotary_share: Annotated[float, Field(gt=0, le=1)]
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
    dense_layers: Count
    """Number of first layers that have one dense feed-forward layer instead."""
    shared_ffn: Count
    """Intermediate size of the expert that sees every token; 0: none."""
    shared_gate: bool
    """The shared expert's output is gated."""
    score: Literal["softmax", "sigmoid"]
    """sigmoid: with a bias per expert that affects the choice only (arXiv 2408.15664)."""
    scaling: PositiveFloat | None
    """Factor on the routed experts' weights; null: none."""


class Architecture(Section):
    """The architecture in a checkpoint's ``config.json``."""

    layers: PositiveInt
    hidden: PositiveInt
    dense_ffn: PositiveInt | None
    """Intermediate size of a dense feed-forward layer; null: the model has none."""
    vocabulary: PositiveInt
    rotary_base: PositiveInt
    norm_epsilon: PositiveFloat
    attention: Attention
    experts: Experts


class Parsers(Section):
    """SGLang's parsers of replies, by name."""

    tool: str
    reasoning: str


class Layout(Section):
    """The model's parallelism over GPUs, in training and in the engines."""

    tensor: PositiveInt
    pipeline: PositiveInt
    last_stage_layers: PositiveInt | None
    """Layers of the last pipeline stage, which has the output layer too; null: as many as others.
    """
    context: PositiveInt
    expert: PositiveInt
    expert_tensor: PositiveInt
    tokens_per_gpu: PositiveInt
    """Largest number of tokens of a microbatch on one rank; times ``context``: the longest sample.
    """
    dispatcher: Literal["alltoall", "deepep"]
    """Communication that brings tokens to their experts in training."""
    engine_gpus: PositiveInt
    """GPUs of one engine."""
    engine_data: PositiveInt
    """Attention replicas in an engine (dp-attention); 1: attention is sharded over all its GPUs."""
    engine_expert: PositiveInt
    """Expert parallelism in an engine."""
    engine_memory: Annotated[float, Field(gt=0, lt=1)]
    """Share of a GPU's memory that an engine takes for weights and KV cache."""
    convert_nodes: PositiveInt
    """Nodes that convert the checkpoint to Megatron's format together."""


class MoeModel(Section):
    """A mixture-of-experts model of the table, for a trainer on a cluster or a running engine."""

    kind: Literal[
        "qwen3_30b_a3b",
        "qwen3_235b_a22b",
        "qwen3_6_35b_a3b",
        "glm4_5_106b_a12b",
        "glm4_7_355b_a32b",
        "glm4_7_flash",
    ]
    path: Path | None
    """Directory of the Hugging Face checkpoint, where the job reads it."""
    tokenizer: Path | None
    """Directory of the tokenizer."""
    renderer: str
    """Renderer family of the `renderers` library."""
    max_context_tokens: PositiveInt
    """Longest prompt + completion, in tokens."""
    stop_token_ids: tuple[Count, ...]
    parsers: Parsers
    architecture: Architecture
    layout: Layout
