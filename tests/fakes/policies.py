"""Small random policies of the architectures that the local trainer trains, as transformers saves
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Glm4MoeConfig,
    PretrainedConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

VOCAB = 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
DENSE: dict[str, Any] = {"intermediate_size": 96}
EXPERTS: dict[str, Any] = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
SHARED_EXPERT: dict[str, Any] = {"shared_expert_intermediate_size": 32}
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
    "out_hidden_size": 64, "num_position_embeddings": 16,
}  # fmt: skip


def _glm4_moe() -> PretrainedConfig:
    return Glm4MoeConfig(
        **SIZES, **DENSE, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=1, first_k_dense_replace=1, n_group=2, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.5,
    )  # fmt: skip


FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "qwen3": lambda: Qwen3Config(**SIZES, **DENSE, tie_word_embeddings=True),
    "qwen3, sliding window": lambda: Qwen3Config(
        **SIZES, **DENSE, use_sliding_window=True, sliding_window=8, max_window_layers=2
    ),
    "qwen3_5": lambda: Qwen3_5TextConfig(**SIZES, **DENSE, **LINEAR),
    "qwen3_5, multi-modal": lambda: Qwen3_5Config(
        text_config={**SIZES, **DENSE, **LINEAR}, vision_config=VISION
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SIZES, **DENSE, **EXPERTS, norm_topk_prob=True),
    "glm4_moe": _glm4_moe,
    "qwen3_next": lambda: Qwen3NextConfig(
        **SIZES, **DENSE, **EXPERTS, **SHARED_EXPERT, **LINEAR, norm_topk_prob=True
    ),
    "qwen3_5_moe": lambda: Qwen3_5MoeTextConfig(**SIZES, **EXPERTS, **SHARED_EXPERT, **LINEAR),
    "qwen3_5_moe, multi-modal": lambda: Qwen3_5MoeConfig(
        text_config={**SIZES, **EXPERTS, **SHARED_EXPERT, **LINEAR}, vision_config=VISION
    ),
}
"""By the name of transformers' model type."""
TYPICAL = ("qwen3", "glm4_moe", "qwen3_5_moe")
"""A dense family, a mixture, and a mixture with linear attention."""
SHARING = ("qwen3", "qwen3, sliding window", "qwen3_moe", "glm4_moe")
"""Families that run prefix trees: the others have linear attention."""
ROUTING = tuple(name for name in FAMILIES if "moe" in name or "next" in name)
"""Families that are mixtures of experts."""


def load_plain(source: PretrainedConfig | Path) -> nn.Module:
    """Make a policy, or load one, as transformers' own code does; float32."""
    config = source if isinstance(source, PretrainedConfig) else None
    if config is None:
        config = PretrainedConfig.from_pretrained(str(source))
    wrapped = "vision_config" in config.to_dict()
    kind: Any = AutoModelForImageTextToText if wrapped else AutoModelForCausalLM
    made: nn.Module = (
        kind.from_config(source)
        if isinstance(source, PretrainedConfig)
        else kind.from_pretrained(source, dtype=torch.float32)
    )
    return made


def write_policy(family: str, directory: Path, *, seed: int = 0) -> Path:
    """Write a seeded random policy of a family; its norms and routers are far from their start.

    Routers begin at zero: every choice would be a tie. Linear attention begins with decays that
    leave a token its own value alone, whose sign is then chance, and rounding decides on it.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        policy: Any = load_plain(FAMILIES[family]())
        for name, weight in policy.named_parameters():
            if "gate.weight" in name:
                weight.normal_()
            elif name.endswith("A_log"):
                weight.copy_(torch.linspace(-4, -1, len(weight)))
            elif "norm" in name:
                weight.add_(torch.randn_like(weight), alpha=0.1)
        for name, buffer in policy.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.linspace(-0.2, 0.2, len(buffer)))
        policy.save_pretrained(directory)
    return directory
