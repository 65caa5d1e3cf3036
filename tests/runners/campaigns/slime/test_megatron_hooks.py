"""The hooks of slime's training processes: they measure what training alone sees, and change
nothing.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conf.compose import compose, to_json
from conf.errors import AgentrlError
from conf.sections.training import RoutingRolloutConfig
from runners.campaigns.slime.megatron import hooks
from runners.campaigns.slime.megatron.mismatch_sums import MismatchSums, find_metrics
from runners.campaigns.slime.megatron.step_figures import FOLDER
from runners.campaigns.slime.run_config import read_config
from runners.records.routing import RoutingError
from runners.training.mismatch import Mismatch
from tests.fakes.slime_training import FakeSlime, Router

LAYERS, EXPERTS, TOP_K, WIDTH = 3, 16, 2, 8
DENSE = 1
"""The first layers have no router."""
RECORDED = Path(__file__).parents[3] / "fakes" / "recorded" / "slime" / "truncation.json"


@pytest.fixture
def slime(monkeypatch: pytest.MonkeyPatch) -> FakeSlime:
    made = FakeSlime()
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(hooks, "_process", None)
    return made


@pytest.fixture
def start(tmp_path: Path, slime: FakeSlime) -> Callable[..., Namespace]:
    """Install the hooks in a job with these overrides; return slime's arguments."""

    def install(*overrides: str) -> Namespace:
        config = compose(["routing_replay=rollout", *overrides])
        (tmp_path / "config.json").write_text(to_json(config))
        read_config.cache_clear()
        args = Namespace(
            agentrl_run_dir=str(tmp_path),
            num_layers=LAYERS,
            num_experts=EXPERTS,
            moe_router_topk=TOP_K,
            moe_layer_freq=[0] * DENSE + [1] * (LAYERS - DENSE),
            tis_clip=2.0,
            tis_clip_low=0.0,
            save_debug_train_data=None,
        )
        hooks.install(args)
        return args

    return install


def end_step(slime: FakeSlime, number: int = 0) -> None:
    """End a step as slime's actor does."""
    slime.modules[hooks.METRICS].log_perf_data(number, Namespace())


def written(run_dir: Path, step: int = 1) -> dict[str, float | None]:
    content = json.loads((run_dir / FOLDER / f"step-{step:06d}.json").read_text())
    found: dict[str, float | None] = content["metrics"]
    return found


def train_batch(slime: FakeSlime, routers: list[Router], experts: list[Tensor]) -> None:
    """Lay out a micro-batch of samples, int32 [tokens − 1, LAYERS, TOP_K] each, and run it."""
    laid_out = slime.modules[hooks.ACTOR].prepare_routed_experts_for_routing_replay(
        experts,
        [torch.zeros(len(each) + 1) for each in experts],
        num_experts=EXPERTS,
        data_pad_size_multiplier=32,
        sequence_parallel=False,
        allgather_cp=False,
    )
    hidden = torch.randn(len(laid_out), WIDTH)
    for router in routers:
        native = torch.topk(hidden @ router.weight.T, TOP_K).indices
        layer = laid_out[:, router.layer_number - 1]
        # Marked rows (-1) are the router's own choice, in another order; padding stays as it is.
        own = torch.where(layer < 0, native.flip(1), layer)
        router.routing_replay.record(own)
        router(hidden)


def own_choices(rows: int) -> Tensor:
    return torch.full((rows, LAYERS, TOP_K), -1, dtype=torch.int64)


def make_routers(slime: FakeSlime) -> list[Router]:
    module = slime.modules[hooks.ROUTERS]
    return [Router(module, n + 1, WIDTH, EXPERTS, TOP_K) for n in range(DENSE, LAYERS)]


def test_choices_of_the_same_tokens_do_not_differ_whatever_padding_holds(
    start: Callable[..., Namespace], slime: FakeSlime, tmp_path: Path
) -> None:
    start()
    routers = make_routers(slime)
    train_batch(slime, routers, [own_choices(40), own_choices(7)])
    train_batch(slime, routers, [own_choices(11)])
    end_step(slime)
    assert written(tmp_path)["r3/disagree_slot"] == 0.0
    assert slime.performance == [0]


def test_the_share_of_other_choices_is_counted_per_choice(
    start: Callable[..., Namespace], slime: FakeSlime, tmp_path: Path
) -> None:
    start("routing_replay.alarm_disagreement=1")
    routers = make_routers(slime)
    half = own_choices(20)
    half[:5] = torch.tensor([EXPERTS, EXPERTS])  # experts that no router of these has
    for router in routers:
        router.weight = torch.nn.Parameter(torch.randn(EXPERTS + 1, WIDTH))
        with torch.no_grad():
            router.weight[EXPERTS] = 0.0
    half[5:10, :, 0] = -1
    train_batch(slime, routers, [half])
    end_step(slime)
    share = written(tmp_path)["r3/disagree_slot"]
    assert share is not None
    assert 0.2 < share <= 0.25  # a quarter, less where an expert of weight 0 is among the best


def test_choices_of_other_tokens_stop_training_and_name_the_layer(
    start: Callable[..., Namespace], slime: FakeSlime, tmp_path: Path
) -> None:
    start()
    routers = make_routers(slime)
    shifted = own_choices(60)
    shifted[:, LAYERS - 1] = torch.tensor([0, 1])
    train_batch(slime, routers, [shifted])
    with pytest.raises(RoutingError, match=r"step 1: \d+% of layer 2's replayed choices for 60"):
        end_step(slime)
    assert (tmp_path / FOLDER / "step-000001.json").is_file(), "the job can say why it ended"


def test_a_router_that_does_not_replay_stops_training(
    start: Callable[..., Namespace], slime: FakeSlime
) -> None:
    start()
    routers = make_routers(slime)
    train_batch(slime, routers[:1], [own_choices(9)])
    with pytest.raises(RoutingError, match=r"1 of 2 routers replayed .* and 1 not once per micro"):
        end_step(slime)


def test_only_the_first_replayed_pass_of_a_step_is_measured(
    start: Callable[..., Namespace], slime: FakeSlime, tmp_path: Path
) -> None:
    start()
    routers = make_routers(slime)
    train_batch(slime, routers, [own_choices(30)])
    for slime.stage in ("fallthrough", "replay_backward", "replay_forward"):
        for router in routers:  # other hidden states: nearly every choice is another
            router.routing_replay.forward_index = 0
            router(torch.randn(32, WIDTH))
    end_step(slime)
    assert written(tmp_path)["r3/disagree_slot"] == 0.0


@pytest.mark.parametrize("truncate", ["token", "none"])
def test_the_mismatch_is_that_of_the_tokens_in_the_loss_and_the_loss_is_slimes(
    start: Callable[..., Namespace], slime: FakeSlime, tmp_path: Path, truncate: str
) -> None:
    args = start()
    generator = torch.Generator().manual_seed(0)
    lengths, totals = [5, 0, 9], [8, 4, 10]
    sampled = [-torch.rand(each, generator=generator) for each in lengths]
    trained = [each + 0.1 * torch.randn(len(each), generator=generator) for each in sampled]
    masks = [(torch.rand(each, generator=generator) < 0.7).int() for each in lengths]
    plain = slime.modules[hooks.LOSS]
    if truncate == "token":
        given: dict[str, Any] = {
            "pg_loss": torch.rand(sum(lengths)), "train_log_probs": trained,
            "rollout_log_probs": sampled, "loss_masks": masks,
            "total_lengths": totals, "response_lengths": lengths,
        }  # fmt: skip
        loss, kept, _ = hooks.truncate_ratios(args, **given)
        wanted = plain.vanilla_tis_function(args, **given)
        assert torch.equal(loss, wanted[0])
        assert kept is masks
    else:
        batch = {
            "rollout_log_probs": sampled, "loss_masks": masks,
            "total_lengths": totals, "response_lengths": lengths,
        }  # fmt: skip
        hooks.begin_update(args, 0, 0)
        loss, _ = hooks.policy_loss(args, batch, torch.cat(trained), torch.sum)
        assert torch.equal(
            loss, plain.policy_loss_function(args, batch, torch.cat(trained), torch.sum)[0]
        )
        hooks.begin_update(args, 0, 1)
        hooks.policy_loss(args, batch, torch.cat(trained) - 5.0, torch.sum)
        assert slime.captured is None
    end_step(slime)
    reference = Mismatch()
    reference.add(
        torch.cat(trained)[torch.cat(masks) > 0], torch.cat(sampled)[torch.cat(masks) > 0]
    )
    found = written(tmp_path)
    for name in ("k1", "k3", "F_1.1", "F_2"):
        assert found[f"r3/{name}"] == pytest.approx(reference.metrics()[name], rel=1e-9)
    assert found["policy/k3"] == found["r3/k3"]


def test_the_parts_of_context_parallel_ranks_make_the_whole(
    start: Callable[..., Namespace], slime: FakeSlime, tmp_path: Path
) -> None:
    args = start("routing_replay=off")
    lengths, totals = [9, 3, 20], [13, 17, 21]
    masks = [torch.ones(each) for each in lengths]
    slime.parallel.context_size = 2
    cut = slime.modules[hooks.PARALLEL].slice_log_prob_with_cp
    for slime.parallel.context_rank in range(2):
        sampled = [cut(torch.zeros(n), t, n) for t, n in zip(totals, lengths, strict=True)]
        trained = [cut(torch.arange(n) / -n, t, n) for t, n in zip(totals, lengths, strict=True)]
        for slime.parallel.tensor_rank in range(2):  # the second has the same tokens: not counted
            hooks.truncate_ratios(
                args, pg_loss=torch.zeros(sum(map(len, sampled))),
                train_log_probs=[each - slime.parallel.tensor_rank for each in trained],
                rollout_log_probs=sampled, loss_masks=masks,
                total_lengths=totals, response_lengths=lengths,
            )  # fmt: skip
    end_step(slime, 6)
    delta = np.concatenate([np.arange(n, dtype=np.float32) / -n for n in lengths])
    wanted = float(np.mean(np.expm1(delta.astype(float)) - delta))
    assert written(tmp_path, 7) == {"policy/k3": pytest.approx(wanted, rel=1e-6)}


def test_what_slime_calls_the_truncation_with_is_measured(
    start: Callable[..., Namespace], tmp_path: Path, slime: FakeSlime
) -> None:
    """With the values that slime 624b824 itself passed (``real_training``)."""
    args = start()
    for call in json.loads(RECORDED.read_text()):
        slime.parallel.context_size = call["context_size"]
        slime.parallel.context_rank = call["context_rank"]
        listed = ("train_log_probs", "rollout_log_probs", "loss_masks")
        tensors: dict[str, Any] = {
            name: [torch.tensor(each) for each in call[name]] for name in listed
        }
        lengths: dict[str, Any] = {
            name: call[name] for name in ("total_lengths", "response_lengths")
        }
        loss, _, _ = hooks.truncate_ratios(
            args, pg_loss=torch.tensor(call["pg_loss"]), **tensors, **lengths
        )
        assert loss.tolist() == pytest.approx(call["truncated"])
    end_step(slime)
    # That of whole responses: the parts of two ranks add up to the one rank's.
    assert written(tmp_path)["r3/k3"] == pytest.approx(0.0071448158, rel=1e-5)


@given(
    st.lists(st.floats(-3, 3, allow_subnormal=False), min_size=1, max_size=300),
    st.floats(1e-4, 3),
)
def test_the_quantile_is_right_to_a_percent(values: list[float], scale: float) -> None:
    delta = torch.tensor(values, dtype=torch.float64) * scale
    sums = MismatchSums()
    ones = torch.ones(len(delta))
    sums.add([delta], [torch.zeros(len(delta))], [ones])
    found = find_metrics(sums.take())["p999_abs"]
    distance = np.sort(np.abs(delta.numpy()))
    exact = distance[min(len(distance) - 1, int(np.ceil(0.999 * len(distance))) - 1)]
    assert found is not None
    assert found == pytest.approx(exact, rel=0.012, abs=2e-7)
    assert not sums.take().any(), "the next step begins at 0"


def test_a_step_without_trained_tokens_has_figures_of_nothing(
    start: Callable[..., Namespace], slime: FakeSlime, tmp_path: Path
) -> None:
    start("routing_replay=off")
    end_step(slime)
    assert written(tmp_path) == {"policy/k3": None}


def test_another_slime_is_refused_before_training(
    start: Callable[..., Namespace], slime: FakeSlime
) -> None:
    del slime.modules[hooks.ROUTERS].register_routing_replay
    with pytest.raises(AgentrlError, match="has no register_routing_replay"):
        start()
    start("routing_replay=off")


def test_the_alarm_of_a_slime_job_is_that_of_the_laptop() -> None:
    config = compose(["trainer=slime", *CLUSTER, "routing_replay=rollout"])
    assert isinstance(config.routing_replay, RoutingRolloutConfig)
    assert config.routing_replay.alarm_disagreement == 0.05


CLUSTER = (
    *("launch=ray", "launch.head=h", "launch.shared_dir=/s", "model=qwen3_30b_a3b"),
    *("model.path=/s/w", "task=jsonl", "task.path=/s/t.jsonl"),
)
