"""Pack samples into micro-batches, weighted so that every rollout counts alike.

A micro-batch is a prefix tree: what samples have in common is run once. A policy that cannot run
trees gets padded rows, one per sample. Right padding under a causal mask needs no attention mask: a
padded position comes after every real one of its row, so no real one attends to it. Invariant: a
trained token is a prediction of its own in either form, with its own advantage and logprobs, also
where it is predicted at a position that several samples share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from runners.records.record import LogprobArray
from runners.training.sample import Rollout, Sample
from runners.training.tree.attention import TreeAttention
from runners.training.tree.packing import Nodes, count_run, pack_samples


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Positions that are run, and the flat list of predictions that are trained.

    A position is an index into the flat ``input_ids``.
    """

    samples: tuple[int, ...]
    """Index of each sample in the list that was batched."""
    rollout_ids: tuple[str, ...]
    """Rollout of each sample."""
    paths: tuple[Nodes, ...]
    """int64 [tokens that are run] of each sample: the position of each of its tokens."""
    input_ids: Tensor
    """int64 [B, T]: one row of nodes, or a row per sample, right-padded with 0."""
    tree: TreeAttention | None
    """Attention of the one row of a prefix tree; None: rows of samples."""
    nodes: int
    """Positions that no other micro-batch runs and that are not padding."""
    predictors: Tensor
    """int64 [m]: the positions whose outputs predict trained tokens, each once, ascending."""
    predicted_by: Tensor
    """int64 [n]: which of ``predictors`` predicts each trained token: that of the token before."""
    rows: Tensor
    """int64 [n]: number of each trained token's sample in ``samples``."""
    targets: Tensor
    """int64 [n]: the trained token."""
    rollout_logprobs: Tensor
    """float32 [n]: the engine's logprob at sampling time."""
    old_logprobs: Tensor | None
    """float32 [n]: the trainer's logprob before the step's first update; None: not computed."""
    reference_logprobs: Tensor | None
    """float32 [n]: the reference policy's logprob; None: there is none."""
    teacher_logprobs: Tensor | None
    """float32 [n]: the teacher's logprob; None: there is none."""
    advantages: Tensor
    """float32 [n]: advantage of the token."""
    weights: Tensor
    """float32 [n]: weight of the token in the loss."""
    experts: Tensor | None
    """int16 [B · T, layers, K]: routing to replay; None: the samples carry none."""
    routed: Tensor | None
    """bool [B · T]: where ``experts`` is known; never in padding."""


def split_rollouts(
    rollouts: Sequence[Rollout], parts: int, generator: torch.Generator
) -> list[list[Rollout]]:
    """Shuffle rollouts and split them into at most ``parts`` lists of nearly equal length.

    No list is empty. Example: 5 rollouts in 2 parts give lists of 3 and 2.
    """
    order = torch.randperm(len(rollouts), generator=generator).tolist()
    dealt = [[rollouts[index] for index in order[part::parts]] for part in range(parts)]
    return [part for part in dealt if part]


def make_micro_batches(
    samples: Sequence[Sample],
    weights: Sequence[float],
    *,
    tokens_per_microbatch: int,
    device: torch.device,
    tree: bool = True,
) -> Iterator[MicroBatch]:
    """Yield micro-batches of at most ``tokens_per_microbatch`` positions, padding included; a
    longer sample is a micro-batch of its own. A sample without trained tokens is in none.

    ``weights``: of one trained token of each sample, see ``compute_token_weights``. ``tree``: false
    makes rows of samples. Raises ValueError for a sample whose first token is trained: nothing
    predicts it.
    """
    for sample in samples:
        if sample.loss_mask[0]:
            raise ValueError(
                f"{sample.rollout_id}: a sample's first token has no context and cannot be trained"
            )
    layout = _lay_tree if tree else _lay_rows
    for chosen, places in layout(samples, tokens_per_microbatch, device):
        yield _fill([samples[i] for i in chosen], [weights[i] for i in chosen], chosen, places)


def select_tokens(batch: MicroBatch, kept: Tensor) -> MicroBatch:
    """Return the batch with some of its trained tokens, bool [n]; ``rows`` are numbered anew."""

    def part(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[kept]

    return replace(
        batch,
        rows=torch.unique(batch.rows[kept], return_inverse=True)[1],
        predicted_by=batch.predicted_by[kept],
        targets=batch.targets[kept],
        rollout_logprobs=batch.rollout_logprobs[kept],
        old_logprobs=part(batch.old_logprobs),
        reference_logprobs=part(batch.reference_logprobs),
        teacher_logprobs=part(batch.teacher_logprobs),
        advantages=batch.advantages[kept],
        weights=batch.weights[kept],
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """Places of the tokens of a micro-batch's samples."""

    shape: tuple[int, int]
    paths: tuple[Nodes, ...]
    nodes: int
    tree: TreeAttention | None
    device: torch.device


_Layout = Iterator[tuple[tuple[int, ...], _Places]]
"""Samples of each micro-batch, and where their tokens are."""


def _lay_tree(samples: Sequence[Sample], most: int, device: torch.device) -> _Layout:
    for pack in pack_samples(samples, most):
        size = len(pack.depths)
        tree = TreeAttention(pack, device)
        yield pack.samples, _Places((1, size), pack.paths, size - pack.repeated, tree, device)


def _lay_rows(samples: Sequence[Sample], most: int, device: torch.device) -> _Layout:
    """Batch samples of nearly equal lengths, so that little is padding; equally long ones in the
    order of their tokens, since that of concurrent sub-agents' segments is chance.
    """
    lengths = [count_run(sample) for sample in samples]

    def place(index: int) -> tuple[int, str, bytes]:
        sample = samples[index]
        return -lengths[index], sample.rollout_id, sample.tokens.tobytes()

    order = sorted((index for index, length in enumerate(lengths) if length), key=place)
    while order:
        longest = lengths[order[0]]
        size = max(1, most // longest)
        chosen, order = tuple(order[:size]), order[size:]
        paths = [row * longest + np.arange(lengths[i]) for row, i in enumerate(chosen)]
        shape = len(chosen), longest
        yield chosen, _Places(shape, tuple(paths), sum(map(len, paths)), None, device)


def _fill(
    samples: list[Sample], weights: list[float], order: tuple[int, ...], places: _Places
) -> MicroBatch:
    device = places.device

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    ids = np.zeros(places.shape[0] * places.shape[1], np.int64)
    for sample, path in zip(samples, places.paths, strict=True):
        ids[path] = sample.tokens[: len(path)]
    trained = [np.flatnonzero(sample.loss_mask) for sample in samples]
    pairs = list(zip(samples, places.paths, trained, strict=True))
    sources = np.concatenate([path[tokens - 1] for _, path, tokens in pairs])
    predictors, predicted_by = np.unique(sources, return_inverse=True)
    counts = [len(tokens) for tokens in trained]
    targets = np.concatenate([sample.tokens[tokens] for sample, _, tokens in pairs])
    rollout = np.concatenate([sample.logprobs[tokens] for sample, _, tokens in pairs])
    experts, routed = _place_routing(samples, places)
    return MicroBatch(
        samples=order,
        rollout_ids=tuple(sample.rollout_id for sample in samples),
        paths=places.paths,
        input_ids=tensor(ids.reshape(places.shape)),
        tree=places.tree,
        nodes=places.nodes,
        predictors=tensor(predictors),
        predicted_by=tensor(predicted_by),
        rows=tensor(np.repeat(np.arange(len(samples)), counts)),
        targets=tensor(targets.astype(np.int64)),
        rollout_logprobs=tensor(rollout.astype(np.float32)),
        old_logprobs=_chosen([sample.old_logprobs for sample in samples], samples, device),
        reference_logprobs=_chosen(
            [sample.reference_logprobs for sample in samples], samples, device
        ),
        teacher_logprobs=_chosen([sample.teacher_logprobs for sample in samples], samples, device),
        advantages=tensor(np.concatenate([sample.trained_advantages for sample in samples])),
        weights=tensor(np.repeat(np.array(weights, dtype=np.float32), counts)),
        experts=None if experts is None else tensor(experts),
        routed=None if routed is None else tensor(routed),
    )


def _chosen(
    logprobs: Sequence[LogprobArray | None], samples: Sequence[Sample], device: torch.device
) -> Tensor | None:
    """Return the logprobs of the trained tokens; None if a sample has none."""
    pairs = zip(logprobs, samples, strict=True)
    parts = [each[sample.loss_mask] for each, sample in pairs if each is not None]
    if len(parts) < len(samples):
        return None
    return torch.from_numpy(np.concatenate(parts)).to(device)


def _place_routing(
    samples: list[Sample], places: _Places
) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Place the samples' routing; a sample without any is routed natively among others."""
    known = next((sample.routing for sample in samples if sample.routing is not None), None)
    if known is None:
        return None, None
    size = places.shape[0] * places.shape[1]
    experts = np.zeros((size, *known.experts.shape[1:]), np.int16)
    routed = np.zeros(size, bool)
    for sample, path in zip(samples, places.paths, strict=True):
        if sample.routing is not None:
            experts[path] = sample.routing.experts[: len(path)]
            routed[path] = sample.routing.valid[: len(path)]
    return experts, routed
