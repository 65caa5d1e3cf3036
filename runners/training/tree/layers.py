"""Let the layers of a policy of transformers run prefix trees, if they can."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from runners.training.policy import find_decoder
from runners.training.tree.attention import TreeAttention, attend_by_blocks
from runners.training.tree.flex import attend_in_one_kernel

NAME = "prefix_tree"
ATTENDING = ("full_attention", "sliding_attention")
"""Layers in which a token knows its past by attention alone. Linear attention has a recurrent state
instead, which is that of the node before, not of the parent."""
CHANGES = ("softcap", "s_aux", "position_bias")
"""Arguments of an attention function that change its scores."""


def enable_trees(policy: Any) -> None:
    """Let a policy without an obstacle run prefix trees beside plain rows, which it computes as
    before.
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    policy.set_attn_implementation(NAME)


def disable_trees(policy: Any) -> None:
    """Undo ``enable_trees``."""
    policy.set_attn_implementation("sdpa")


def find_obstacle(policy: Any) -> str | None:
    """Return why a policy cannot run prefix trees, None if nothing in its configuration says so."""
    config = find_decoder(policy).config
    layers = getattr(config, "layer_types", None) or ()
    others = sorted({str(layer) for layer in layers} - set(ATTENDING))
    if others:
        return f"it has layers of {', '.join(others)}"
    if policy.config.get_text_config() is not policy.config:
        return "it is one of several modalities, whose positions have several parts"
    if policy.config._attn_implementation != "sdpa":
        return f"its attention is computed by {policy.config._attn_implementation}"
    if getattr(config, "attention_dropout", 0.0):
        return "its attention has dropout"
    if getattr(config, "attention_chunk_size", None):
        return "its attention is in chunks"
    return None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: TreeAttention | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the mixed values, float [B, T, heads, E], as transformers asks of an attention
    function.

    ``query`` [B, heads, T, D]; ``key`` [B, heads / groups, T, D]; ``value`` likewise; ``tree``: of
    the one row (B = 1), None for plain rows. Raises NotImplementedError for what a tree's attention
    does not have.
    """
    if tree is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask,
            scaling=scaling, dropout=dropout, sliding_window=sliding_window, **others,
        )  # fmt: skip
        return found
    changes = [name for name in CHANGES if others.get(name) is not None]
    if changes or dropout or len(query) != 1:
        raise NotImplementedError(f"attention of a prefix tree with {changes or 'dropout, rows'}")
    window = sliding_window or None
    if window != (getattr(module, "sliding_window", None) or None):
        raise NotImplementedError("a layer with a window that its attention is not told")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.device.type == "cuda":
        return attend_in_one_kernel(query, key, value, tree, window, scale), None
    mixed = attend_by_blocks(query[0], key[0], value[0], tree, window, scale)
    return mixed.transpose(0, 1).contiguous()[None], None
