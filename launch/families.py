"""The families of models that slime trains, by ``model_type`` of a checkpoint's ``config.json``.

What the file itself does not say: kinds of layers, and slime's builder of them. Each family is
checked against slime's own scripts (``tests/launch/test_slime_scripts.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Spec = Literal["glm4", "glm5", "minimax_m2", "qwen3_5", "qwen3_next"]


@dataclass(frozen=True, slots=True)
class Family:
    """Facts that all models of a family share; None: the checkpoint's file says it."""

    attention: Literal["grouped", "latent", "hybrid"] = "grouped"
    qk_norm: bool | None = False
    qkv_bias: bool | None = False
    rotary_share: float = 1.0
    """Share of a head's dimensions that are rotated, where the file does not say it."""
    experts: Literal["softmax", "sigmoid"] | None = None
    """Scores of the router; None: the family is dense."""
    dense_ffn: bool = False
    """``intermediate_size`` is that of a dense layer even if no layer is dense."""
    draft_layers: int = 0
    """Layers of multi-token prediction, where the file does not say it."""
    spec: Spec | None = None


FAMILIES = {
    "deepseek_v3": Family("latent", experts="sigmoid"),
    "glm4": Family(qkv_bias=None, rotary_share=0.5, spec="glm4"),
    "glm4_moe": Family(qk_norm=None, qkv_bias=None, rotary_share=0.5, experts="sigmoid"),
    "glm4_moe_lite": Family("latent", experts="sigmoid"),
    "glm_moe_dsa": Family("latent", experts="sigmoid", spec="glm5"),
    "kimi_k2": Family("latent", experts="sigmoid"),
    "llama": Family(),
    "mimo": Family(qkv_bias=True),
    "minimax_m2": Family(qk_norm=True, experts="sigmoid", spec="minimax_m2"),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True, experts="softmax", dense_ffn=True),
    "qwen3_next": Family(
        "hybrid",
        qk_norm=True,
        rotary_share=0.25,
        experts="softmax",
        dense_ffn=True,
        draft_layers=1,
        spec="qwen3_next",
    ),
    "qwen3_5_text": Family("hybrid", qk_norm=True, rotary_share=0.25, spec="qwen3_5"),
    "qwen3_5_moe_text": Family(
        "hybrid", qk_norm=True, rotary_share=0.25, experts="softmax", spec="qwen3_5"
    ),
}
WRAPPERS = ("qwen3_5", "qwen3_5_moe")
"""Models with images whose text model slime trains alone."""
