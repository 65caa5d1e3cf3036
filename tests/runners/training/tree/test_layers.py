"""Policies that run prefix trees, and those that cannot: none trains on wrong numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.training.policy import load_policy
from runners.training.policy_check import prepare_trees
from runners.training.tree.layers import attend
from tests.fakes.policies import FAMILIES, SHARING, TYPICAL, write_policy
from tests.fakes.variants import variants


@pytest.mark.parametrize("family", variants(FAMILIES, TYPICAL))
def test_a_policy_runs_trees_or_says_why_not(family: str, tmp_path: Path) -> None:
    policy: Any = load_policy(write_policy(family, tmp_path))
    before = policy.config._attn_implementation
    obstacle = prepare_trees(policy)
    assert (obstacle is None) == (family in SHARING)
    if obstacle is not None:
        assert "linear_attention" in obstacle
        assert policy.config._attn_implementation == before


def change(weights: Path, **values: object) -> Any:
    """Load a policy whose configuration has other values."""
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps({**config, **values}))
    return load_policy(weights)


def test_dropout_is_an_obstacle(tmp_path: Path) -> None:
    policy = change(write_policy("qwen3", tmp_path), attention_dropout=0.1)
    assert prepare_trees(policy) == "its attention has dropout"


def test_every_layer_of_a_mixture_can_have_a_window(tmp_path: Path) -> None:
    weights = write_policy("qwen3_moe", tmp_path)
    policy = change(weights, use_sliding_window=True, sliding_window=8)
    assert policy.model.layers[0].self_attn.sliding_window == 8
    assert prepare_trees(policy) is None


def test_a_layer_whose_window_its_attention_is_not_told_runs_no_trees(tmp_path: Path) -> None:
    """A window longer than the tokens that are tried would not show in their numbers."""
    policy = change(write_policy("qwen3, sliding window", tmp_path), sliding_window=4096)
    attention = policy.model.layers[3].self_attn
    assert attention.sliding_window == 4096
    query = torch.zeros(1, 4, 2, 16)
    tree: Any = object()
    with pytest.raises(NotImplementedError, match="window"):
        attend(attention, query, query, query, None, tree=tree, scaling=1.0)


def ignore_positions(policy: Any) -> None:
    """Let a policy number the nodes of a row instead."""
    rotary = policy.model.rotary_emb.forward
    policy.model.rotary_emb.forward = lambda states, position_ids: rotary(
        states, torch.arange(position_ids.shape[1])[None]
    )


def ignore_trees(policy: Any) -> None:
    """Let layers not pass on what they do not know."""
    for layer in policy.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, forward=forward, tree=None, **rest: forward(
            *args, **rest
        )


@pytest.mark.parametrize("spoil", [ignore_positions, ignore_trees])
def test_a_policy_that_gives_other_numbers_gets_rows(
    spoil: Callable[[Any], None], tmp_path: Path
) -> None:
    policy: Any = load_policy(write_policy("qwen3", tmp_path))
    spoil(policy)
    obstacle = prepare_trees(policy)
    assert obstacle is not None
    assert "logprobs of a prefix tree differ" in obstacle
    assert policy.config._attn_implementation == "sdpa"
