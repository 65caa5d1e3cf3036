"""Attention of a float32 policy on a GPU that keeps no matrix of all pairs of tokens.

torch's fused kernels for grouped keys are those of 16-bit numbers. In float32 it falls back to one
that keeps heads · T² numbers, three times over: 12 GiB of a layer with 16 heads and 8,192 tokens
(measured, H100). With every key repeated for the heads that share it, its memory-efficient kernel
(Rabe & Staats 2021, arXiv 2112.05682) takes float32 too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_with_repeated_keys"


def repeat_keys(policy: Any) -> None:
    """Let the attention layers of a policy that computes by torch's attention (sdpa) repeat their
    keys and values; another policy stays as it is.
    """
    if policy.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    policy.set_attn_implementation(NAME)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return ``softmax(q · kᵀ · scaling + mask) · v``, float [B, T, heads, D], as transformers asks
    of an attention function.

    ``query`` [B, heads, T, D]; ``key``, ``value`` [B, heads / groups, S, D]; ``attention_mask``
    [B, 1, T, S], or None: causal, unless the module or the call says otherwise.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    mixed = F.scaled_dot_product_attention(
        query,
        repeat_kv(key, groups),
        repeat_kv(value, groups),
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
        is_causal=is_causal and attention_mask is None and query.shape[2] > 1,
    )
    return mixed.transpose(1, 2).contiguous(), None
