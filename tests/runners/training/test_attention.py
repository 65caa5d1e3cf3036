"""Attention with repeated keys: the same numbers, in every family, with a shared prompt too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from runners.training.attention import NAME, repeat_keys
from runners.training.policy import find_decoder
from runners.training.prefix import can_share_prefix, compute_hidden_states
from tests.fakes.policies import FAMILIES, VOCAB, load_plain, write_policy


@pytest.mark.parametrize("family", FAMILIES)
def test_repeated_keys_change_no_policy_s_numbers(family: str, tmp_path: Path) -> None:
    weights = write_policy(family, tmp_path)
    plain: Any = load_plain(weights)
    repeated: Any = load_plain(weights)
    repeat_keys(repeated)
    assert plain.config._attn_implementation == "sdpa"
    assert repeated.config._attn_implementation == NAME
    tokens = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
    tokens[1, :24] = tokens[0, :24]
    parts = (0, 24) if can_share_prefix(find_decoder(plain)) else (0,)
    for shared in parts:
        expected, found = (
            compute_hidden_states(find_decoder(policy), tokens, shared)
            for policy in (plain, repeated)
        )
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
