"""Attention with repeated keys: the same numbers, in every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from runners.training.attention import NAME, repeat_keys
from runners.training.policy import find_decoder
from tests.fakes.policies import FAMILIES, TYPICAL, VOCAB, load_plain, write_policy
from tests.fakes.variants import variants


@pytest.mark.parametrize("family", variants(FAMILIES, TYPICAL))
def test_repeated_keys_change_no_policy_s_numbers(family: str, tmp_path: Path) -> None:
    weights = write_policy(family, tmp_path)
    plain: Any = load_plain(weights)
    repeated: Any = load_plain(weights)
    repeat_keys(repeated)
    assert plain.config._attn_implementation == "sdpa"
    assert repeated.config._attn_implementation == NAME
    tokens = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
    expected, found = (
        find_decoder(policy)(input_ids=tokens, use_cache=False).last_hidden_state
        for policy in (plain, repeated)
    )
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
