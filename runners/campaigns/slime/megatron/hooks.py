"""Functions that slime calls in its training processes, one per GPU.

    --custom-megatron-init-path                   install
    --custom-tis-function-path                    truncate_ratios   (correction.truncate=token)
    --custom-loss-function-path                   policy_loss       (correction.truncate=none)
    --custom-megatron-before-train-step-hook-path begin_update

What slime has no argument for is wrapped by ``install``: the routers' choices, and the end of a
step (``train_metric_utils.log_perf_data``, which each process calls after its last update).
Everything is read from slime 624b824; a version that lacks one of the names is refused.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conf.errors import AgentrlError
from conf.schema import Config
from conf.sections.training import RoutingRolloutConfig
from runners.campaigns.slime.megatron.mismatch_sums import MismatchSums
from runners.campaigns.slime.megatron.router_counts import RouterCounts
from runners.campaigns.slime.megatron.step_figures import judge_step
from runners.campaigns.slime.run_config import find_run_dir, read_config
from runners.records.routing import RoutingError

LOSS = "slime.backends.megatron_utils.loss"
ACTOR = "slime.backends.megatron_utils.actor"
PARALLEL = "slime.backends.megatron_utils.cp_utils"
ROUTERS = "slime.utils.routing_replay"
METRICS = "slime.observability.train_metric_utils"
GROUPS = "slime.utils.distributed_utils"
NEEDED = {
    LOSS: (
        *("policy_loss_function", "vanilla_tis_function"),
        *("enable_log_prob_capture", "drain_captured_log_probs"),
    ),
    PARALLEL: ("slice_log_prob_with_cp",),
    METRICS: ("log_perf_data",),
    GROUPS: ("get_gloo_group",),
    ROUTERS: ("register_routing_replay", "get_routing_replay_compute_topk", "ROUTING_REPLAY"),
    ACTOR: ("prepare_routed_experts_for_routing_replay",),
}

_log = logging.getLogger(__name__)


class TrainingProcess:
    """The measurements of this training process, from its start to its end."""

    def __init__(self, args: Any) -> None:
        """Read the run's configuration; raises ConfigError."""
        self.run_dir = find_run_dir(args)
        self.config: Config = read_config(self.run_dir)
        self.mismatch = MismatchSums()
        self.updates = 0
        """Updates that have begun in this step."""
        self.routers: RouterCounts | None = None
        if isinstance(self.config.routing_replay, RoutingRolloutConfig):
            self.routers = RouterCounts(int(args.num_layers))
        self.routing_layers = _count_routers(args)

    def finish_step(self, slime_rollout: int) -> None:
        """Add the sums of all processes, and write them; raises RoutingError if they say that the
        routing is not that of its tokens. Called by all processes at once.
        """
        parts = [self.mismatch.take(), *([self.routers.take()] if self.routers else [])]
        self.updates = 0
        sums = torch.from_numpy(np.concatenate(parts))
        first = True
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums, group=_get(GROUPS, "get_gloo_group")())
            first = torch.distributed.get_rank() == 0
        found = judge_step(
            slime_rollout + 1, sums.numpy(), self.config.routing_replay, self.routing_layers
        )
        if first:
            try:
                found.write(self.run_dir)
            except (AgentrlError, OSError) as error:  # training goes on without figures
                _log.error("step %d has no figures of training: %s", found.step, error)
        if found.fault is not None:
            raise RoutingError(f"step {found.step}: {found.fault}")


_process: TrainingProcess | None = None


def install(args: Any) -> None:
    """Begin to measure in this process, before its model is built; raises AgentrlError if slime
    lacks a function that this needs.
    """
    global _process
    process = TrainingProcess(args)
    for name, wanted in NEEDED.items():
        if name in (ROUTERS, ACTOR) and process.routers is None:
            continue
        missing = [each for each in wanted if not hasattr(importlib.import_module(name), each)]
        if missing:
            raise AgentrlError(
                f"{name} has no {missing[0]}, which agentrl wraps to measure training: install "
                "slime 624b824"
            )
    if process.routers is not None:
        process.routers.watch(importlib.import_module(ROUTERS), importlib.import_module(ACTOR))
    metrics: Any = importlib.import_module(METRICS)
    metrics.log_perf_data = _after_each_step(metrics.log_perf_data, process)
    _process = process


def begin_update(args: Any, rollout_id: int, step_id: int, *_: Any) -> None:
    """Note that an update begins."""
    if _process is not None:
        _process.updates = step_id + 1


def truncate_ratios(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
) -> Any:
    """Measure a micro-batch, and return what slime's own truncation makes of its losses.

    ``train_log_probs``: of each sample this rank's part of its response, float32 [n], computed
    before the step's first update; ``loss_masks`` are of whole responses.
    """
    lengths = (total_lengths, response_lengths)
    _measure(train_log_probs, rollout_log_probs, loss_masks, lengths)
    return _get(LOSS, "vanilla_tis_function")(
        args,
        pg_loss=pg_loss,
        train_log_probs=train_log_probs,
        rollout_log_probs=rollout_log_probs,
        loss_masks=loss_masks,
        total_lengths=total_lengths,
        response_lengths=response_lengths,
    )


def policy_loss(
    args: Any, batch: dict[str, Any], logits: Tensor, mean: Callable[[Tensor], Tensor]
) -> Any:
    """Return slime's policy loss and figures; measure the micro-batch if it is of a step's first
    update. Its logprobs are those of the loss itself: no further forward pass.
    """
    loss = _get(LOSS, "policy_loss_function")
    if _process is None or _process.updates > 1 or args.save_debug_train_data is not None:
        return loss(args, batch, logits, mean)  # slime itself keeps the logprobs for its file
    # slime keeps the logprobs by place in its data; any numbers will do.
    places = list(range(len(batch["response_lengths"])))
    _get(LOSS, "enable_log_prob_capture")()
    try:
        found = loss(args, {**batch, "partition": places}, logits, mean)
    finally:
        captured = _get(LOSS, "drain_captured_log_probs")()
    trained = [captured[place] for place in places]
    lengths = (batch["total_lengths"], batch["response_lengths"])
    _measure(trained, batch["rollout_log_probs"], batch["loss_masks"], lengths)
    return found


def _measure(
    trained: Sequence[Tensor],
    sampled: Sequence[Tensor],
    masks: Sequence[Tensor],
    lengths: tuple[Sequence[int], Sequence[int]],
) -> None:
    if _process is None or not trained:
        return
    megatron: Any = importlib.import_module("megatron.core").mpu
    if megatron.get_tensor_model_parallel_rank() != 0:
        return  # the ranks of a tensor-parallel group have the same tokens
    cut = _get(PARALLEL, "slice_log_prob_with_cp")
    parts = [cut(*each) for each in zip(masks, *lengths, strict=True)]
    _process.mismatch.add(trained, sampled, parts)


def _after_each_step(log: Callable[..., Any], process: TrainingProcess) -> Callable[..., Any]:
    def log_perf_data(rollout_id: int, args: Any, *given: Any, **named: Any) -> Any:
        found = log(rollout_id, args, *given, **named)
        process.finish_step(rollout_id)
        return found

    return log_perf_data


def _count_routers(args: Any) -> int:
    """Return the number of layers that route, by Megatron's ``--moe-layer-freq``."""
    if not getattr(args, "num_experts", None):
        return 0
    frequency = args.moe_layer_freq
    if isinstance(frequency, int):
        return len(range(0, int(args.num_layers), frequency))
    return sum(1 for each in frequency if each)


def _get(module: str, name: str) -> Any:
    """Return a function of slime, which is there only in its processes."""
    return getattr(importlib.import_module(module), name)
