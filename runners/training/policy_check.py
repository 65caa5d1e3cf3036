"""Check that a policy is computed here as transformers computes it, before anything is sampled.

Training takes three short cuts: hidden states go through the output layer only where a token is
trained, rows of one batch are padded on the right without a mask, and a beginning that rows share
is run once. Each is right for the architectures that are tested and wrong for some others (logits
that are scaled or capped, attention in both directions), which would train silently on wrong
numbers. A few tokens show it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runners.training.policy import TrainingError, find_decoder, find_head
from runners.training.prefix import can_share_prefix, compute_hidden_states

SHARED, OWN = 12, 6
"""Tokens of the beginning that two rows share, and of each row after it."""
MOST_DIFFERENT = 1e-3
"""Nats. Rounding of float32 is some 1e-5; an expert chosen otherwise by rounding moves single
positions, which is why the median over positions is compared.
"""


@torch.no_grad()
def check_policy(policy: Any) -> None:
    """Raise TrainingError if one of training's short cuts changes a float32 policy's logprobs."""
    training = policy.training
    policy.eval()
    try:
        _check(policy)
    except (AttributeError, TypeError, NotImplementedError) as error:
        raise TrainingError(
            f"{_name(policy)} has no decoder that can be trained: {error}"
        ) from error
    finally:
        policy.train(training)


def _check(policy: Any) -> None:
    decoder, head = find_decoder(policy), find_head(policy)
    tokens = _tokens(head)
    whole = _logprobs(policy(input_ids=tokens, use_cache=False).logits)
    plain = compute_hidden_states(decoder, tokens, 0)
    _require(policy, whole, _logprobs(head(plain)), "its logits are not its output layer's alone")
    single = compute_hidden_states(decoder, tokens[:1, :-OWN], 0)
    reason = "tokens on the right change those before them"
    _require(policy, whole[:1, :-OWN], _logprobs(head(single)), reason)
    if can_share_prefix(decoder):
        shared = compute_hidden_states(decoder, tokens, SHARED)
        reason = "keys and values of a beginning do not serve the rows that share it"
        _require(policy, whole[:, SHARED:], _logprobs(head(shared)), reason)


def _tokens(head: nn.Linear) -> Tensor:
    """Return two rows that begin alike, int64 [2, SHARED + OWN]; always the same."""
    rows = torch.arange(2 * (SHARED + OWN)).reshape(2, -1) * 31 + 7
    rows[1, :SHARED] = rows[0, :SHARED]
    return (rows % head.weight.shape[0]).to(head.weight.device)


def _logprobs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1)


def _require(policy: Any, expected: Tensor, found: Tensor, reason: str) -> None:
    difference = (expected - found).abs().amax(dim=-1).median().item()
    if not difference <= MOST_DIFFERENT:
        raise TrainingError(
            f"{_name(policy)} cannot be trained with trainer=local: {reason} (logprobs differ by "
            f"{difference:.2g})"
        )


def _name(policy: Any) -> str:
    return f"{type(policy).__name__} (model_type {policy.config.model_type})"
