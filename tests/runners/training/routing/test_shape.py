"""The shape of the routing, from configurations of different model families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.records.routing import RoutingShape
from runners.training.routing.shape import read_routing_shape

QWEN = {"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}


def model(tmp_path: Path, **config: Any) -> Path:
    """Write a model's configuration."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (QWEN, RoutingShape(4, 2, 8, (0, 1, 2, 3))),
        ({"text_config": QWEN, "num_experts_per_tok": None}, RoutingShape(4, 2, 8, (0, 1, 2, 3))),
        ({"text_config": None, **QWEN}, RoutingShape(4, 2, 8, (0, 1, 2, 3))),
        ({"text_config": {"num_experts": None}, **QWEN}, RoutingShape(4, 2, 8, (0, 1, 2, 3))),
        ({**QWEN, "first_k_dense_replace": 1}, RoutingShape(4, 2, 8, (1, 2, 3))),
        ({**QWEN, "decoder_sparse_step": 2}, RoutingShape(4, 2, 8, (1, 3))),
        ({**QWEN, "mlp_only_layers": [0, 3]}, RoutingShape(4, 2, 8, (1, 2))),
        (
            {"n_routed_experts": 384, "num_experts_per_tok": 8, "num_hidden_layers": 2},
            RoutingShape(2, 8, 384, (0, 1)),
        ),
        ({"num_hidden_layers": 4}, None),
        ({"num_hidden_layers": 4, "num_experts": None}, None),
        ({"num_hidden_layers": 4, "num_experts": 0}, None),
    ],
)
def test_the_routing_s_shape_is_read_from_the_config(
    tmp_path: Path, config: dict[str, Any], shape: RoutingShape | None
) -> None:
    assert read_routing_shape(model(tmp_path, **config)) == shape


def test_a_config_with_experts_but_without_experts_per_token_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="num_experts_per_tok"):
        read_routing_shape(model(tmp_path, num_experts=8, num_hidden_layers=2))
