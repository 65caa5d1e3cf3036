"""slime's training side on a CPU: the callers of ``runners.campaigns.slime.megatron.hooks``.

As in slime 624b824: ``utils/routing_replay.py``, ``backends/megatron_utils`` (``loss.py``,
``cp_utils.py``, ``actor.py``), ``observability/train_metric_utils.py``.
``tests.runners.campaigns.slime.real_training`` runs the same scenes with slime's own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from runners.campaigns.slime.megatron import hooks


@dataclass
class Parallel:
    """The place of a process: ``megatron.core.mpu``."""

    context_size: int = 1
    context_rank: int = 0
    tensor_rank: int = 0

    def get_tensor_model_parallel_rank(self) -> int:
        return self.tensor_rank

    def get_tensor_model_parallel_world_size(self) -> int:
        return 1

    def get_context_parallel_world_size(self) -> int:
        return self.context_size

    def get_context_parallel_rank(self) -> int:
        return self.context_rank


class Replay:
    """The routing of one router, micro-batch by micro-batch; ``RoutingReplay``."""

    def __init__(self) -> None:
        self.forward_index = 0
        self.batches: list[Tensor] = []

    def record(self, experts: Tensor) -> None:
        self.batches.append(experts)

    def pop_forward(self) -> Tensor:
        self.forward_index += 1
        return self.batches[self.forward_index - 1]


@dataclass
class FakeSlime:
    """slime's modules by their names."""

    parallel: Parallel = field(default_factory=Parallel)
    stage: str = "replay_forward"
    """``ROUTING_REPLAY_STAGE``"""
    performance: list[int] = field(default_factory=list)
    """Steps whose end slime has logged."""
    captured: dict[int, Tensor] | None = None
    modules: dict[str, ModuleType] = field(init=False)

    def __post_init__(self) -> None:
        names = (hooks.LOSS, hooks.ACTOR, hooks.PARALLEL, hooks.ROUTERS, hooks.METRICS)
        self.modules = {name: ModuleType(name) for name in (*names, hooks.GROUPS, "megatron.core")}
        for name in names:
            for end in range(1, name.count(".") + 1):
                parent = name.rsplit(".", end)[0]
                self.modules.setdefault(parent, ModuleType(parent))
        routers: Any = self.modules[hooks.ROUTERS]
        routers.ROUTING_REPLAY = None
        routers.register_routing_replay = self._register
        routers.get_routing_replay_compute_topk = self._choose
        self._put("megatron.core", mpu=self.parallel)
        self._put(hooks.PARALLEL, slice_log_prob_with_cp=self._slice)
        self._put(hooks.ACTOR, prepare_routed_experts_for_routing_replay=self._prepare)
        self._put(hooks.METRICS, log_perf_data=lambda number, *_: self.performance.append(number))
        self._put(hooks.GROUPS, get_gloo_group=lambda: None)
        self._put(
            hooks.LOSS,
            vanilla_tis_function=_truncate,
            policy_loss_function=self._policy_loss,
            enable_log_prob_capture=self._enable,
            drain_captured_log_probs=self._drain,
        )

    def _put(self, module: str, **content: Any) -> None:
        vars(self.modules[module]).update(content)

    def _register(self, module: nn.Module) -> None:
        replay: Any = Replay()
        module.routing_replay = replay

        def before(*_: object) -> None:
            self._put(hooks.ROUTERS, ROUTING_REPLAY=replay)

        module.register_forward_pre_hook(before)

    def _choose(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def compute_topk(scores: Tensor, topk: int, *given: Any) -> tuple[Tensor, Tensor]:
            if self.stage == "fallthrough":
                found: tuple[Tensor, Tensor] = own(scores, topk, *given)
                return found
            routers: Any = self.modules[hooks.ROUTERS]
            if self.stage == "replay_forward":
                experts = routers.ROUTING_REPLAY.pop_forward()
            else:
                experts = routers.ROUTING_REPLAY.batches[0]
            assert experts.shape == (len(scores), topk)
            return scores.gather(1, experts.long()), experts

        return compute_topk

    def _slice(self, values: Tensor, total: int, response: int) -> Tensor:
        assert len(values) == response
        size, rank = self.parallel.context_size, self.parallel.context_rank
        if size == 1:
            return values
        chunk = -(-total // (2 * size))
        parts = []
        for number in (rank, 2 * size - rank - 1):  # logits say something of the token after them
            start = max(number * chunk, total - response - 1)
            stop = max(start, min((number + 1) * chunk, total - 1))
            offset = total - response - 1
            parts.append(values[start - offset : stop - offset])
        return torch.cat(parts)

    def _prepare(
        self,
        experts: Sequence[Tensor],
        tokens: Sequence[Tensor],
        *,
        num_experts: int,
        data_pad_size_multiplier: int,
        sequence_parallel: bool,
        allgather_cp: bool,
    ) -> Tensor:
        assert all(len(rows) == len(ids) - 1 for rows, ids in zip(experts, tokens, strict=True))
        whole = torch.cat([_pad(rows, 1, num_experts) for rows in experts])
        return _pad(whole, -len(whole) % data_pad_size_multiplier, num_experts)

    def _enable(self) -> None:
        self.captured = {}

    def _drain(self) -> dict[int, Tensor]:
        found, self.captured = self.captured or {}, None
        return found

    def _policy_loss(
        self, args: Any, batch: dict[str, Any], logits: Tensor, mean: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """``logits``: here the logprobs of the responses, one after the other."""
        lengths = [len(each) for each in batch["rollout_log_probs"]]
        logprobs = list(torch.split(logits, lengths))
        if self.captured is not None and batch.get("partition"):
            self.captured |= {
                place: each.detach().clone()
                for place, each in zip(batch["partition"], logprobs, strict=True)
            }
        ratio = torch.exp(torch.cat(logprobs) - torch.cat(batch["rollout_log_probs"]))
        loss = mean(-ratio)
        return loss, {"loss": loss.detach()}


def _truncate(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: Any,
) -> tuple[Tensor, Sequence[Tensor], dict[str, Tensor]]:
    ratio = torch.exp(torch.cat(list(train_log_probs)) - torch.cat(list(rollout_log_probs)))
    weight = ratio.clamp(args.tis_clip_low, args.tis_clip)
    return pg_loss * weight, loss_masks, {"tis": ratio.detach()}


def _pad(rows: Tensor, count: int, experts: int) -> Tensor:
    _, layers, top_k = rows.shape
    made = torch.arange(count * layers * top_k, dtype=rows.dtype).reshape(count, layers, top_k)
    return torch.cat([rows, made % experts])


class Router(nn.Module):
    """A router of Megatron with slime's patch, as ``TopKRouter`` has it."""

    def __init__(self, slime: Any, layer: int, width: int, experts: int, top_k: int) -> None:
        """``slime``: the module ``slime.utils.routing_replay``; ``layer``: from 1."""
        super().__init__()
        self.layer_number = layer
        self.top_k = top_k
        self._slime = slime
        self.weight = nn.Parameter(torch.randn(experts, width))
        self.routing_replay: Any
        """slime's ``RoutingReplay``"""
        slime.register_routing_replay(self)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and experts, [rows, top_k] each, of hidden states [rows, width]."""

        def own(scores: Tensor, top_k: int, groups: Any = None, most: Any = None) -> Any:
            return torch.topk(scores, k=top_k, dim=1)

        choose = self._slime.get_routing_replay_compute_topk(own)
        found: tuple[Tensor, Tensor] = choose(hidden @ self.weight.T, self.top_k, None, None)
        return found
