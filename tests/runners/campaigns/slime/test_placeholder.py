"""Placeholders: rows without weight, of the right shape whatever the model's config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.campaigns.slime.placeholder import (
    PROMPT_TOKENS,
    constant_placeholder,
    prompt_placeholder,
    read_pad_token,
)
from runners.records.routing import RoutingShape


def model(tmp_path: Path, **config: Any) -> Path:
    """Write a model's configuration."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("config", "pad"),
    [
        ({"pad_token_id": 7}, 7),
        ({"pad_token_id": [5, 6]}, 5),
        ({"pad_token_id": None, "eos_token_id": 3}, 3),
        ({"pad_token_id": [], "eos_token_id": [4]}, 4),
        ({"text_config": {"pad_token_id": 9}, "pad_token_id": 1}, 9),
        ({"pad_token_id": -1, "eos_token_id": "x"}, 0),
        ({}, 0),
    ],
)
def test_the_padding_token_falls_back_to_the_end_token_and_to_0(
    tmp_path: Path, config: dict[str, Any], pad: int
) -> None:
    assert read_pad_token(model(tmp_path, **config)) == pad


def test_the_padding_token_of_a_damaged_model_is_0(tmp_path: Path) -> None:
    assert read_pad_token(tmp_path) == 0
    (tmp_path / "config.json").write_text("[")
    assert read_pad_token(tmp_path) == 0
    (tmp_path / "config.json").write_text("[1]")
    assert read_pad_token(tmp_path) == 0


@pytest.mark.parametrize("experts", [256, 257])
def test_a_placeholder_has_no_weight_and_routes_to_distinct_experts_that_do_not_count(
    experts: int,
) -> None:
    shape = RoutingShape(layers=3, top_k=4, experts=experts, routed=(0, 1, 2))
    sample = prompt_placeholder("r", np.arange(1000, dtype=np.int32), 7, shape)
    assert len(sample.tokens) == PROMPT_TOKENS + 1
    assert sample.tokens[-1] == 7
    assert not sample.loss_mask.any()
    assert sample.advantage == 0.0
    assert sample.routing is not None
    assert sample.routing.experts.shape == (PROMPT_TOKENS + 1, 3, 4)
    assert sample.routing.experts.dtype == (np.uint8 if experts <= 256 else np.uint16)
    assert not sample.routing.valid.any()
    assert all(len(set(row)) == 4 for row in sample.routing.experts.reshape(-1, 4).tolist())


def test_the_constant_row_needs_nothing_and_has_one_captured_row_at_most() -> None:
    sample = constant_placeholder("r", 0, RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1)))
    assert sample.tokens.tolist() == [0, 0]
    assert not sample.loss_mask.any()
    assert sample.routing is not None
    assert len(sample.routing.experts) - 1 == 1, "the last token's routing is never captured"
    assert constant_placeholder("r", 0, None).routing is None
