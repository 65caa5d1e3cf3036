"""Run the hooks of slime's training processes under slime's own loss, layout and routing replay.

    git clone https://github.com/THUDM/slime SLIME && git -C SLIME checkout 624b824
    python -m tests.runners.campaigns.slime.real_training SLIME [--record]

On the CPU, in one process: Megatron is replaced, the logits of a micro-batch are logprobs. Compares
what the hooks write with the same figures computed from whole responses. ``--record`` writes what
slime passes to the truncation, which the unit tests use. No test runs it: it needs slime's source.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.utils.flop_counter  # before triton is replaced
from torch import Tensor

from conf.compose import compose, to_json
from runners.campaigns.slime.megatron import hooks
from runners.campaigns.slime.megatron.step_figures import FOLDER
from runners.training.mismatch import Mismatch
from tests.fakes import below_slime
from tests.fakes.slime_training import Parallel, Router

RECORDED = Path(__file__).parents[3] / "fakes" / "recorded" / "slime" / "truncation.json"
LENGTHS, TOTALS = [9, 3, 20], [13, 17, 21]
LAYERS, EXPERTS, TOP_K, WIDTH = 3, 16, 2, 8
Calls = list[dict[str, Any]]


def make_args(run_dir: Path, **changes: Any) -> Namespace:
    """Return the arguments that slime's loss reads."""
    common: dict[str, Any] = dict.fromkeys(
        (
            *("use_opsm", "use_kl_loss", "get_mismatch_metrics", "calculate_per_token_loss"),
            *("use_opd", "use_unbiased_kl", "use_rollout_logprobs", "use_tis"),
        ),
        False,
    )
    return Namespace(
        **common
        | {
            "agentrl_run_dir": str(run_dir), "num_layers": LAYERS, "num_experts": EXPERTS,
            "moe_router_topk": TOP_K, "moe_layer_freq": [0, 1, 1], "tis_clip": 2.0,
            "tis_clip_low": 0.0, "save_debug_train_data": None, "eps_clip": 0.2,
            "eps_clip_high": 0.28, "eps_clip_c": None, "entropy_coef": 0.0,
            "advantage_estimator": "grpo", "custom_tis_function_path": None,
            "custom_pg_loss_reducer_function_path": None, "rollout_top_p": 1.0,
        }
        | changes
    )  # fmt: skip


def compute_losses(args: Namespace, parallel: Parallel, calls: Calls) -> Mismatch:
    """Run slime's policy loss on all context ranks; return the mismatch of whole responses."""
    loss: Any = importlib.import_module(hooks.LOSS)
    cut: Any = importlib.import_module(hooks.PARALLEL)
    generator = torch.Generator().manual_seed(1)
    sampled = [-torch.rand(each, generator=generator) for each in LENGTHS]
    trained = [each + 0.1 * torch.randn(len(each), generator=generator) for each in sampled]
    masks = [(torch.rand(each, generator=generator) < 0.7).int() for each in LENGTHS]

    def logprobs(logits: Tensor, **_: Any) -> Any:
        found = [
            cut.slice_log_prob_with_cp(*each) for each in zip(trained, TOTALS, LENGTHS, strict=True)
        ]
        return None, {"log_probs": found, "entropy": [torch.zeros_like(each) for each in found]}

    loss.get_log_probs_and_entropy = logprobs
    for rank in range(parallel.context_size):
        parallel.context_rank = rank
        own = [
            cut.slice_log_prob_with_cp(*each) for each in zip(sampled, TOTALS, LENGTHS, strict=True)
        ]
        batch = {
            "advantages": [torch.ones_like(each) for each in own], "rollout_log_probs": own,
            "response_lengths": LENGTHS, "total_lengths": TOTALS, "loss_masks": masks,
            "unconcat_tokens": [torch.zeros(each) for each in TOTALS],
            "rollout_mask_sums": torch.stack([mask.sum().float() for mask in masks]),
        }  # fmt: skip
        mean = cut.get_sum_of_sample_mean(TOTALS, LENGTHS, masks, batch["rollout_mask_sums"])
        if args.use_tis:
            loss.load_function = lambda path: _recorded(calls, parallel)
            function = loss.policy_loss_function
        else:
            function = hooks.policy_loss
        value, figures = function(args, batch, torch.zeros(1), mean)
        plain, _ = loss.policy_loss_function(
            Namespace(**{**vars(args), "custom_tis_function_path": None}),
            batch, torch.zeros(1), mean,
        )  # fmt: skip
        assert torch.equal(value, plain), "the loss is slime's own"
        assert "train_rollout_logprob_abs_diff" in figures
    whole = Mismatch()
    kept = torch.cat(masks) > 0
    whole.add(torch.cat(trained)[kept], torch.cat(sampled)[kept])
    return whole


def _recorded(calls: Calls, parallel: Parallel) -> Any:
    def truncate(**given: Any) -> Any:
        found = hooks.truncate_ratios(**given)
        lists = ("train_log_probs", "rollout_log_probs", "loss_masks")
        calls.append(
            {
                "context_size": parallel.context_size,
                "context_rank": parallel.context_rank,
                "pg_loss": given["pg_loss"].tolist(),
                "truncated": found[0].tolist(),
                **{name: [each.tolist() for each in given[name]] for name in lists},
                **{name: list(given[name]) for name in ("total_lengths", "response_lengths")},
            }
        )
        return found

    return truncate


def replay_routing(parallel: Parallel, built: Sequence[Router], *, wrong: int) -> int:
    """Replay a micro-batch on all ranks; ``wrong``: tokens of each sample with experts of others.

    Returns how many of the choices are others.
    """
    routers: Any = importlib.import_module(hooks.ROUTERS)
    actor: Any = importlib.import_module(hooks.ACTOR)
    expected = 0
    for rank in range(parallel.context_size):
        parallel.context_rank = rank
        shape = (LAYERS, TOP_K)
        given = [torch.full((each - 1, *shape), -1, dtype=torch.int32) for each in TOTALS]
        for each in given:
            each[:wrong] = EXPERTS
        laid_out = actor.prepare_routed_experts_for_routing_replay(
            given, [torch.zeros(each) for each in TOTALS], num_experts=EXPERTS,
            data_pad_size_multiplier=32, sequence_parallel=False, allgather_cp=False,
        )  # fmt: skip
        hidden = torch.randn(len(laid_out), WIDTH)
        for router in built:
            scores = hidden @ router.weight.T
            best, worst = scores.topk(TOP_K).indices, (-scores).topk(TOP_K).indices
            layer = laid_out[:, router.layer_number - 1]
            experts = torch.where(layer < 0, best.flip(1), torch.where(layer == 16, worst, layer))
            router.routing_replay.record(experts.to(torch.int32))
            expected += int((layer == EXPERTS).sum())
            router(hidden)
    routers.RoutingReplay.clear_all()
    return expected


def run(record: bool) -> None:
    """Run all scenes, and print what was found."""
    parallel, calls = Parallel(), Calls()
    for name in ("megatron.core", hooks.PARALLEL, hooks.LOSS, hooks.ACTOR):
        vars(importlib.import_module(name))["mpu"] = parallel
    metrics: Any = importlib.import_module(hooks.METRICS)
    routers: Any = importlib.import_module(hooks.ROUTERS)
    routers.accelerator.current_device = lambda: "cpu"
    pinned = torch.empty_like
    torch.empty_like = lambda like, **_: pinned(like)
    metrics.log_perf_data = lambda *_, **__: None  # it times GPUs
    os.environ["ENABLE_ROUTING_REPLAY"] = "1"
    os.environ["ROUTING_REPLAY_STAGE"] = "replay_forward"
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        groups: Any = importlib.import_module(hooks.GROUPS)
        groups.init_gloo_group()
        changes = ("routing_replay=rollout", "routing_replay.alarm_disagreement=1")
        (run_dir / "config.json").write_text(to_json(compose(list(changes))))
        hooks.install(make_args(run_dir))
        built = [Router(routers, number, WIDTH, EXPERTS, TOP_K) for number in (2, 3)]
        step = 0
        for size in (1, 2):
            for use_tis in (True, False):
                parallel.context_size = size
                path = "ours" if use_tis else None
                args = make_args(
                    run_dir, use_tis=use_tis, use_rollout_logprobs=not use_tis,
                    custom_tis_function_path=path,
                )  # fmt: skip
                whole = compute_losses(args, parallel, calls)
                other = replay_routing(parallel, built, wrong=step)
                metrics.log_perf_data(step, args)
                step += 1
                file = run_dir / FOLDER / f"step-{step:06d}.json"
                found = json.loads(file.read_text())["metrics"]
                share = other / (len(built) * TOP_K * sum(each - 1 for each in TOTALS))
                print(f"context ranks {size}, {'truncated' if use_tis else 'own loss'}: {found}")
                for name in ("k1", "k3", "F_1.1", "F_2"):
                    wanted = whole.metrics()[name]
                    assert wanted is not None
                    assert abs(found[f"r3/{name}"] - wanted) < 1e-7, name
                assert abs(found["r3/disagree_slot"] - share) < 1e-9, (share, found)
    if record:
        RECORDED.write_text(json.dumps(calls) + "\n")


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    below_slime.install()
    torch.compile = lambda *_, **__: lambda function: function  # type: ignore[assignment]
    run("--record" in sys.argv)
