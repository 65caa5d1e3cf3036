"""Models that are trained on a cluster, and their layout over GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.architecture import Architecture, Count
from conf.sections.section import Follows, Section


class Parsers(Section):
    """SGLang's parsers of replies, by name."""

    tool: str | None = None
    """Parser of tool calls (``--tool-call-parser``); null: none."""
    reasoning: str | None = None
    """Parser of the thinking (``--reasoning-parser``); null: it does not think."""


class Speculation(Section):
    """The engine drafts tokens, which the model checks at once (arXiv 2211.17192)."""

    steps: Count = 0
    """Tokens drafted at a time; 0: none."""
    path: Path | None = None
    """Directory of a draft model (EAGLE-3, arXiv 2503.01840), where the engines read it; null: the
    model's own layers of multi-token prediction draft.
    """
    train_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the loss of the model's own layers, if they are trained along; 0: they stay."""


class Layout(Section):
    """The model's parallelism over GPUs, in training and in the engines."""

    tensor: PositiveInt = 8
    """Tensor parallelism (TP); within a node."""
    pipeline: PositiveInt = 1
    """Pipeline stages (PP)."""
    last_stage_layers: PositiveInt | None = None
    """Layers of the last pipeline stage, which has the output layer too; null: as many as others.
    """
    context: PositiveInt = 2
    """Context parallelism (CP)."""
    expert: PositiveInt = 1
    """Expert parallelism (EP)."""
    expert_tensor: PositiveInt = 1
    """Tensor parallelism of experts (ETP)."""
    tokens_per_gpu: PositiveInt = 16384
    """Largest number of tokens of a microbatch on one rank; times ``context``: the longest sample.
    """
    dispatcher: Literal["alltoall", "deepep"] = "alltoall"
    """Communication that brings tokens to their experts in training."""
    engine_gpus: PositiveInt = 8
    """GPUs of one engine."""
    engine_data: PositiveInt = 1
    """Attention replicas in an engine (dp-attention); 1: attention is sharded over all its GPUs."""
    engine_expert: PositiveInt = 1
    """Expert parallelism in an engine."""
    engine_memory: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Share of a GPU's memory that an engine takes for weights and KV cache."""
    convert_nodes: PositiveInt = 1
    """Nodes that convert the checkpoint to Megatron's format together."""


class ClusterModel(Section):
    """A model for a trainer on a cluster, or a running engine."""

    kind: str
    path: Path | None = None
    """Directory of the Hugging Face checkpoint, where the job reads it."""
    tokenizer: Annotated[Path | None, Follows("${model.path}")]
    """Directory of the tokenizer."""
    renderer: str
    """Renderer family of the `renderers` library."""
    max_context_tokens: PositiveInt = 32768
    """Longest prompt + completion, in tokens."""
    stop_token_ids: tuple[Count, ...] = ()
    """Tokens that end a turn; empty: those of the checkpoint."""
    parsers: Parsers
    speculative: Speculation
    fp8_path: Path | None = None
    """Directory of the same checkpoint in FP8, which the engines load; training stays bfloat16."""
    layout: Layout


class TableModel(ClusterModel):
    """A model of the table."""

    kind: Literal[
        "qwen2_5_coder_32b",
        "qwen3_8b",
        "qwen3_32b",
        "qwen3_30b_a3b",
        "qwen3_235b_a22b",
        "qwen3_next_80b_a3b",
        "qwen3_6_35b_a3b",
        "glm4_5_106b_a12b",
        "glm4_7_355b_a32b",
        "glm4_7_flash",
    ]
    architecture: Architecture
    """The architecture in the checkpoint's ``config.json``."""


class CheckpointModel(ClusterModel):
    """Any checkpoint of a family that slime trains: its ``config.json`` has the architecture."""

    kind: Literal["checkpoint"]
    config: Path | None = None
    """The checkpoint's ``config.json`` as this machine reads it; null: the one in ``path``."""
