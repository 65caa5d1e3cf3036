"""slime's side of a rollout: its ``Sample``, its call of a rollout function, its checks of samples.

As in slime 624b824: ``slime/utils/types.py``, ``ray/rollout.py``, ``utils/dp_schedule.py``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np


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


@dataclass
class RolloutFnTrainOutput:
    """What ``slime.rollout.base_types`` wants of a rollout function."""

    samples: list[list[Any]]
    metrics: dict[str, Any] | None = None


def install_fake_modules(modules: MutableMapping[str, ModuleType] = sys.modules) -> None:
    """Make the modules importable that our functions import from slime."""
    types, outputs = ModuleType("slime.utils.types"), ModuleType("slime.rollout.base_types")
    types.Sample = Sample  # type: ignore[attr-defined]
    outputs.RolloutFnTrainOutput = RolloutFnTrainOutput  # type: ignore[attr-defined]
    parents = (ModuleType(name) for name in ("slime", "slime.utils", "slime.rollout"))
    for module in (*parents, types, outputs):
        modules[module.__name__] = module


def run_rollout_function(
    args: Namespace, rollout_id: int, data_source: Any, function: Callable[..., Any]
) -> list[list[Generated]]:
    """Call a rollout function as ``RolloutManager`` does; return groups of rollouts of samples."""
    output = function(args, rollout_id, data_source, evaluation=False)
    assert isinstance(output, RolloutFnTrainOutput)
    assert all(isinstance(value, int | float) for value in (output.metrics or {}).values())
    depths = {_depth(group) for group in output.samples}
    assert depths == {2}, "a mix of depths is flattened wrongly, without an error"
    return output.samples


def _depth(node: Any) -> int:
    return 1 + _depth(node[0]) if isinstance(node, list) else 0


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
    rollouts = {made.rollout_id for made in samples}
    size = args.rollout_batch_size * args.n_samples_per_prompt
    assert len(rollouts) == size, "others would be dropped, or too few to train"
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
