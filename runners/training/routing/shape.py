"""Read the shape of a policy's routing from its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.records.routing import RoutingShape


def read_routing_shape(model: Path) -> RoutingShape | None:
    """Read the shape from a model directory's ``config.json``, the nested ``text_config`` first;
    None for a dense model.

    Raises OSError or ValueError if the file cannot be read or lacks the numbers.
    """
    whole = json.loads((model / "config.json").read_text("utf-8"))
    nested = whole.get("text_config") or {}

    def number(*names: str) -> int | None:
        found = (part.get(name) for part in (nested, whole) for name in names)
        return next((int(value) for value in found if value is not None), None)

    experts = number("num_experts", "n_routed_experts", "num_local_experts")
    if not experts:
        return None
    top_k, layers = number("num_experts_per_tok"), number("num_hidden_layers")
    if not top_k or not layers:
        raise ValueError(
            f"{model / 'config.json'} has {experts} experts, but no num_experts_per_tok or "
            "num_hidden_layers"
        )
    return RoutingShape(layers, top_k, experts, _routed_layers({**whole, **nested}, layers))


def _routed_layers(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return the indices of the layers that route.

    Dense are the first ``first_k_dense_replace`` (DeepSeek, GLM), all but every
    ``decoder_sparse_step``-th, and those of ``mlp_only_layers`` (Qwen).
    """
    dense_first = config.get("first_k_dense_replace") or 0
    step = config.get("decoder_sparse_step") or 1
    listed = set(config.get("mlp_only_layers") or ())
    return tuple(
        layer
        for layer in range(layers)
        if layer >= dense_first and layer not in listed and (layer + 1) % step == 0
    )
