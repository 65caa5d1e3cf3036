"""Check that a policy is computed here as transformers computes it, before anything is sampled.

Training takes three short cuts: hidden states go through the output layer only where a token is
trained, rows of one batch are padded on the right without a mask, and what samples have in common
is run once, as a prefix tree. The first two are right for the architectures that are tested and
wrong for some others (logits that are scaled or capped, attention in both directions), which would
train silently on wrong numbers. A policy that cannot do the third gets rows. A few tokens show it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runners.training.contract import TrainingError
from runners.training.hidden_states import compute_hidden_states
from runners.training.micro_batches import MicroBatch, make_micro_batches
from runners.training.policy import find_decoder, find_head
from runners.training.sample import Sample
from runners.training.tree.layers import disable_trees, enable_trees, find_obstacle

LENGTH, CUT = 18, 12
"""Tokens of two rows, and of what is run of the first alone."""
BRANCHES = (100, 120)
"""Tokens that the second sample of a tree has of the first, and the third of the second: more nodes
than a block of attention has."""
OWN = 50
"""Tokens of each of them after that."""
MOST_DIFFERENT = 1e-3
"""Nats. Rounding of float32 is some 1e-5; an expert chosen otherwise by rounding moves single
positions, which is why the median over positions is compared.
"""
MOST_TURNED = 0.05
"""Share of a gradient's norm. A wrong mask turns it by 0.2 and more."""


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


def prepare_trees(policy: Any) -> str | None:
    """Let a float32 policy run prefix trees beside rows, which it computes as before.

    Returns why it cannot, and leaves it as it was then: by its configuration, or because a small
    tree does not give the logprobs and the gradient of its samples.
    """
    obstacle = find_obstacle(policy)
    if obstacle is not None:
        return obstacle
    training = policy.training
    enable_trees(policy)
    policy.eval()
    try:
        obstacle = _compare_tree(policy)
    except (AttributeError, TypeError, RuntimeError) as error:  # a kernel of another device, too
        obstacle = f"its layers do not run trees: {error}"
    finally:
        policy.train(training)
    if obstacle is not None:
        disable_trees(policy)
    return obstacle


def _check(policy: Any) -> None:
    decoder, head = find_decoder(policy), find_head(policy)
    if type(head) is not nn.Linear:  # others may need the logits that chosen_logprobs.py overwrites
        raise TrainingError(
            f"{_name(policy)} cannot be trained with trainer=local: its output layer is a "
            f"{type(head).__name__}, no plain linear layer"
        )
    tokens = torch.arange(2 * LENGTH).reshape(2, -1) * 31 + 7
    tokens = (tokens % head.weight.shape[0]).to(head.weight.device)
    whole = _logprobs(policy(input_ids=tokens, use_cache=False).logits)
    plain = decoder(input_ids=tokens, use_cache=False).last_hidden_state
    _require(policy, whole, _logprobs(head(plain)), "its logits are not its output layer's alone")
    single = decoder(input_ids=tokens[:1, :CUT], use_cache=False).last_hidden_state
    reason = "tokens on the right change those before them"
    _require(policy, whole[:1, :CUT], _logprobs(head(single)), reason)


def _compare_tree(policy: Any) -> str | None:
    """Return what is different in a tree of three samples, each of which branches off the last."""
    samples = _make_samples(find_head(policy).weight.shape[0])
    found = [_run(policy, samples, tree=tree) for tree in (False, True)]
    (expected, slope), (computed, turned) = found
    if not _differ(expected, computed) <= MOST_DIFFERENT:
        return f"logprobs of a prefix tree differ by {_differ(expected, computed):.2g}"
    share = ((turned - slope).norm() / slope.norm().clamp(min=1e-30)).item()
    if not share <= MOST_TURNED:
        return f"the gradient of a prefix tree differs by {share:.0%}"
    return None


def _make_samples(vocabulary: int) -> list[Sample]:
    """Return three samples, the same for every policy of this vocabulary."""
    tokens = np.zeros(0, np.int32)
    samples = []
    for number, shared in enumerate((0, *BRANCHES)):
        size = shared + OWN if shared else BRANCHES[0] + OWN
        own = (np.arange(size - shared) * 31 + 7 + 1000 * number) % vocabulary
        tokens = np.concatenate([tokens[:shared], own]).astype(np.int32)
        mask = np.arange(len(tokens)) >= len(tokens) - OWN + 1
        nothing = np.zeros(len(tokens), np.float32)
        samples.append(Sample(f"check-{number}", tokens, mask, nothing, 0.0))
    return samples


def _run(policy: Any, samples: list[Sample], *, tree: bool) -> tuple[Tensor, Tensor]:
    """Return the logprobs of all tokens after the samples' last branch, float32 [samples, OWN − 1,
    V], and the gradient of a part of them for the smallest weight of the first layer.
    """
    decoder, head = find_decoder(policy), find_head(policy)
    batches = make_micro_batches(
        samples, [0.0] * len(samples), tokens_per_microbatch=1 << 20, device=head.weight.device,
        tree=tree,
    )  # fmt: skip
    (batch,) = batches
    weight = min(decoder.layers[0].parameters(), key=torch.numel)
    weight.requires_grad_(True)
    logprobs = _logprobs(head(compute_hidden_states(decoder, batch)[_find_ends(batch)]))
    (slope,) = torch.autograd.grad(logprobs[..., 0].sum(), weight)
    return logprobs.detach(), slope


def _find_ends(batch: MicroBatch) -> Tensor:
    """Return the positions of the samples' last tokens, in the order of the list, int64 [samples,
    OWN − 1].
    """
    by_sample = dict(zip(batch.samples, batch.paths, strict=True))
    ends = np.stack([by_sample[index][1 - OWN :] for index in sorted(by_sample)])
    return torch.from_numpy(ends).to(batch.input_ids.device)


def _logprobs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1)


def _differ(expected: Tensor, found: Tensor) -> float:
    """Return the median over positions of the largest difference."""
    return (expected - found).abs().amax(dim=-1).median().item()


def _require(policy: Any, expected: Tensor, found: Tensor, reason: str) -> None:
    difference = _differ(expected, found)
    if not difference <= MOST_DIFFERENT:
        raise TrainingError(
            f"{_name(policy)} cannot be trained with trainer=local: {reason} (logprobs differ by "
            f"{difference:.2g})"
        )


def _name(policy: Any) -> str:
    return f"{type(policy).__name__} (model_type {policy.config.model_type})"
