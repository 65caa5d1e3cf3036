"""slime's side of a rollout: its ``Sample``, its call of ``generate``, its checks of samples."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

SAMPLING = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 64, "stop": None,
    "stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}  # fmt: skip


@dataclass
class Sample:
    """The fields of ``slime.utils.types.Sample`` that a text rollout has."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False

    class Status(Enum):
        """The state of a sample."""

        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None


Generated = list[Any]


def make_groups(tasks: Sequence[str], size: int, *, first: int = 0) -> list[list[Sample]]:
    """Return groups of samples numbered over the whole job, as slime's data source does."""
    return [
        [
            Sample(
                group_index=first + group,
                index=(first + group) * size + member,
                prompt="Fix it.",
                label=task,
                metadata={"instance_id": task},
            )
            for member in range(size)
        ]
        for group, task in enumerate(tasks)
    ]


async def run_rollout(
    args: Namespace, sample: Sample, function: Callable[..., Any], *, evaluation: bool = False
) -> Generated:
    """Call a generate function as ``generate_and_rm`` does."""
    assert "evaluation" in inspect.signature(function).parameters
    given = await function(args, sample, dict(SAMPLING), evaluation=evaluation)
    assert isinstance(given, list)
    if not any(made.status is Sample.Status.ABORTED for made in given):
        assert all(made.reward is not None for made in given), "there is no reward model"
    return given


async def run_group(
    args: Namespace, group: list[Sample], function: Callable[..., Any]
) -> list[Generated]:
    """Run a group as ``generate_and_rm_group`` does: one exception fails the whole group."""
    for sample in group:
        sample.session_id = str(uuid.uuid4())
    tasks = [asyncio.create_task(run_rollout(args, sample, function)) for sample in group]
    return list(await asyncio.gather(*tasks))


def make_train_data(
    args: Namespace, groups: Sequence[Sequence[Generated]], rewards: Callable[..., Any]
) -> dict[str, list[Any]]:
    """Turn groups into training columns as slime does, with its assertions."""
    for group in groups:
        for siblings in group:
            if len(siblings) > 1:
                ids = {made.rollout_id for made in siblings}
                assert None not in ids
                assert len(ids) == 1
    samples = [made for group in groups for siblings in group for made in siblings]
    raw, trained = rewards(args, samples)
    assert len(raw) == len(trained) == len(samples)
    masks = []
    for made in samples:
        assert len(made.loss_mask) == made.response_length
        assert len(made.rollout_log_probs) == made.response_length
        masks.append([0] * made.response_length if made.remove_sample else made.loss_mask)
    sums: dict[int, int] = defaultdict(int)
    for made, mask in zip(samples, masks, strict=True):
        sums[made.rollout_id] += sum(mask)
    if args.use_rollout_routing_replay:
        for made in samples:
            experts = np.asarray(made.rollout_routed_experts)
            assert experts.shape == (
                len(made.tokens) - 1, args.num_layers, args.moe_router_topk,
            )  # fmt: skip
            assert all(experts[:, layer].any() for layer in args.moe_layers)
    return {
        "tokens": [made.tokens for made in samples],
        "rewards": trained,
        "raw_reward": raw,
        "loss_masks": masks,
        "rollout_ids": [made.rollout_id for made in samples],
        "rollout_mask_sums": [sums[made.rollout_id] for made in samples],
    }
