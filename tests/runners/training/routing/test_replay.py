"""Replay in real routers of transformers: forced choices, own weights, gradients, and alarms."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from runners.records.routing import RoutingError
from runners.training.recompute import checkpoint_layers
from runners.training.routing.replay import WEIGHTS, ReplayCounts, RouterReplay

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
EXPERTS, TOP_K, LAYERS = 8, 2, 3


def qwen(**changes: Any) -> nn.Module:
    """A Qwen3-MoE."""
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**{**SMALL, "num_experts": EXPERTS, "norm_topk_prob": True, **changes})
    )


def glm() -> nn.Module:
    """A GLM-4-MoE whose first layer is dense and whose correction bias is not zero."""
    config = Glm4MoeConfig(
        **SMALL, n_routed_experts=EXPERTS, n_shared_experts=1, first_k_dense_replace=1,
        n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
    )  # fmt: skip
    policy = Glm4MoeForCausalLM(config)
    for name, buffer in policy.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.linspace(-0.2, 0.2, EXPERTS))
    return policy


POLICIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "qwen3": (qwen, (0, 1, 2)),
    "qwen3, unnormalised": (lambda: qwen(norm_topk_prob=False), (0, 1, 2)),
    "qwen3, every second layer": (lambda: qwen(decoder_sparse_step=2), (1,)),
    "qwen3, first layer listed as dense": (lambda: qwen(mlp_only_layers=[0]), (1, 2)),
    "glm4, dense first": (glm, (1, 2)),
}


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> nn.Module:
    """Every family and layout."""
    torch.manual_seed(0)
    made = POLICIES[request.param][0]()
    with torch.no_grad():  # routers begin at zero or close to it: every choice would be a tie
        for name, weight in made.named_parameters():
            if "gate.weight" in name:
                weight.normal_()
    made.train()
    return made


TOKENS = torch.arange(14).reshape(2, 7) % 40


def logits_of(policy: nn.Module, tokens: Tensor = TOKENS) -> Tensor:
    """Run the policy."""
    logits: Tensor = policy(input_ids=tokens, use_cache=False).logits
    return logits


def recorded(policy: nn.Module, replay: RouterReplay, tokens: Tensor = TOKENS) -> Tensor:
    """Return what the routers choose, int64 [N, layers, K]; zeros where a layer is dense."""
    rows = tokens.numel()
    valid = torch.ones(rows, dtype=torch.bool)
    with torch.no_grad(), replay.micro_batch(), replay.forward(None, valid) as seen:
        logits_of(policy, tokens)
    experts = torch.zeros(rows, LAYERS, TOP_K, dtype=torch.int64)
    for layer, chosen in seen.items():
        experts[:, layer] = chosen
    return experts


def replayed(
    policy: nn.Module, replay: RouterReplay, experts: Tensor, valid: Tensor | None = None
) -> tuple[Tensor, ReplayCounts]:
    """Run the policy on given experts."""
    everywhere = torch.ones(TOKENS.numel(), dtype=torch.bool)
    with (
        replay.micro_batch() as fired,
        replay.forward(experts, everywhere if valid is None else valid),
    ):
        logits = logits_of(policy)
    return logits, fired


def other(experts: Tensor, seed: int = 1) -> Tensor:
    """Return distinct experts that were not chosen by a router, for every row and layer."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(*experts.shape[:2], EXPERTS, generator=generator)
    return scores.scatter(2, experts, -1.0).topk(TOP_K, dim=2)[1]


@pytest.mark.parametrize("kind", POLICIES)
def test_the_layers_that_route_are_found(kind: str) -> None:
    make, routed = POLICIES[kind]
    assert tuple(RouterReplay(make()).routers) == routed


def test_replaying_what_the_routers_choose_changes_nothing(policy: nn.Module) -> None:
    native = logits_of(policy)
    replay = RouterReplay(policy)
    logits, fired = replayed(policy, replay, recorded(policy, replay))
    difference = logits.log_softmax(-1) - native.log_softmax(-1)
    assert (difference.exp() - 1 - difference).max() < 1e-10
    assert fired.other_slots == 0
    assert fired.slots == TOKENS.numel() * TOP_K * len(replay.routers)


def test_outside_a_micro_batch_the_hooks_do_nothing(policy: nn.Module) -> None:
    native = logits_of(policy)
    replay = RouterReplay(policy)
    assert torch.equal(logits_of(policy), native)
    replayed(policy, replay, other(recorded(policy, replay)))
    assert torch.equal(logits_of(policy), native)


def test_gradient_reaches_exactly_the_rows_of_the_replayed_experts(policy: nn.Module) -> None:
    replay = RouterReplay(policy)
    experts = torch.tensor([1, 6]).expand(TOKENS.numel(), LAYERS, TOP_K)
    logits, fired = replayed(policy, replay, experts)
    torch.autograd.backward(logits.square().sum())
    softmax = not policy.config.norm_topk_prob  # type: ignore[union-attr]
    for router in replay.routers.values():
        rows = router.weight.grad.abs().sum(dim=1)  # type: ignore[union-attr, operator]
        touched = set(torch.nonzero(rows > 1e-4 * rows.max()).flatten().tolist())
        # without normalisation the softmax over all experts passes gradient to every row
        assert touched == (set(range(EXPERTS)) if softmax else {1, 6})
    assert fired.other_slots > 0


def test_rows_without_routing_are_routed_natively(policy: nn.Module) -> None:
    native = logits_of(policy)
    replay = RouterReplay(policy)
    own = recorded(policy, replay)
    nothing = torch.zeros(TOKENS.numel(), dtype=torch.bool)
    logits, fired = replayed(policy, replay, torch.zeros_like(own), nothing)
    assert torch.allclose(logits, native, atol=1e-6)
    assert (fired.replayed, fired.slots) == (0, 0)
    half = nothing.clone()
    half[7:] = True  # the second sequence only
    logits, fired = replayed(policy, replay, other(own), half)
    assert torch.allclose(logits[0], native[0], atol=1e-6)
    assert not torch.allclose(logits[1], native[1], atol=1e-3)
    assert fired.rows[0][:7].sum() == 0
    assert fired.rows[0].sum() == fired.other_slots > 0


def test_recomputed_activations_use_the_same_experts_bit_for_bit(policy: nn.Module) -> None:
    replay = RouterReplay(policy)
    experts = other(recorded(policy, replay))
    gradients = []
    for recompute in (False, True):
        if recompute:
            checkpoint_layers(policy, replay.recomputation)
        policy.zero_grad()
        everywhere = torch.ones(TOKENS.numel(), dtype=torch.bool)
        with replay.micro_batch() as fired:
            with replay.forward(experts, everywhere):
                logits = logits_of(policy)
            torch.autograd.backward(logits.square().sum())
        again = {layer: int(recompute) for layer in replay.routers}
        assert {layer: fired.recomputed[layer] for layer in replay.routers} == again
        gradients.append([weight.grad for weight in policy.parameters() if weight.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_router_that_fires_outside_of_a_forward_call_is_an_alarm(policy: nn.Module) -> None:
    """As a layer does that is computed again in nobody's context."""
    replay = RouterReplay(policy)
    with pytest.raises(RoutingError, match="14 rows outside of a call"), replay.micro_batch():
        logits_of(policy)


def test_two_calls_of_a_micro_batch_have_their_own_rows(policy: nn.Module) -> None:
    replay = RouterReplay(policy)
    own = recorded(policy, replay)
    everywhere = torch.ones(7, dtype=torch.bool)
    with replay.micro_batch() as fired:
        for row in (0, 1):
            with replay.forward(own[row * 7 : row * 7 + 7], everywhere):
                logits_of(policy, TOKENS[row : row + 1])
    assert fired.calls == 2
    assert fired.other_slots == 0


def test_two_replays_on_one_policy_have_separate_state(policy: nn.Module) -> None:
    first, second = RouterReplay(policy), RouterReplay(policy)
    own = recorded(policy, first)
    _, fired = replayed(policy, second, other(own))
    assert fired.forward == dict.fromkeys(second.routers, 1)
    _, fired = replayed(policy, first, own)
    assert fired.other_slots == 0
    second.close()
    assert replayed(policy, first, own)[1].other_slots == 0


def test_a_router_whose_rule_is_not_known_is_refused_by_name() -> None:
    class FusedRouter(nn.Module):
        pass

    policy: Any = qwen()
    policy.model.layers[1].mlp.gate = FusedRouter()
    with pytest.raises(RoutingError, match=r"layer 1 routes with FusedRouter.*routing_replay=off"):
        RouterReplay(policy)


def test_a_router_that_gives_logits_alone_is_refused_before_anything_is_replayed() -> None:
    class Glm4MoeTopkRouter(nn.Module):
        """As in transformers 5.12."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(EXPERTS, 16))

        def forward(self, hidden: Tensor) -> Tensor:
            return hidden @ self.weight.T

    policy: Any = glm()
    policy.model.layers[1].mlp.gate = Glm4MoeTopkRouter()
    with pytest.raises(RoutingError, match=r"layer 1's Glm4MoeTopkRouter gives no experts.*5\.17"):
        RouterReplay(policy)


def test_a_hook_that_does_not_fire_is_an_alarm(policy: nn.Module) -> None:
    """The silent no-op: training went on with its own experts."""
    replay = RouterReplay(policy)
    own = recorded(policy, replay)
    last = max(replay.routers)
    replay._hooks[-1].remove()
    with pytest.raises(RoutingError, match=rf"layer {last}'s router fired 0 times in 1 "):
        replayed(policy, replay, own)


def test_a_hook_that_fires_twice_is_an_alarm(policy: nn.Module) -> None:
    """The registry hooked twice: what was forced would be compared with itself."""
    replay = RouterReplay(policy)
    own = recorded(policy, replay)
    first = min(replay.routers)
    replay.routers[first].register_forward_hook(replay._hook(first))
    with pytest.raises(RoutingError, match=rf"layer {first}'s router fired 2 times in 1 "):
        replayed(policy, replay, own)


def test_state_does_not_outlive_a_micro_batch_that_fails(policy: nn.Module) -> None:
    native = logits_of(policy)
    replay = RouterReplay(policy)
    own = recorded(policy, replay)
    with pytest.raises(ValueError, match="in the middle"), replay.micro_batch():
        raise ValueError("in the middle")
    assert torch.equal(logits_of(policy), native)
    with pytest.raises(RoutingError, match="14 rows, and 13 were given"):
        replayed(policy, replay, own[:13], torch.ones(13, dtype=torch.bool))
    assert torch.equal(logits_of(policy), native)
    replayed(policy, replay, own)


def test_micro_batches_do_not_nest_and_calls_belong_to_one(policy: nn.Module) -> None:
    replay = RouterReplay(policy)
    valid = torch.ones(1, dtype=torch.bool)
    with pytest.raises(RoutingError, match="outside"), replay.forward(None, valid):
        pass
    with (
        pytest.raises(RoutingError, match="inside another"),
        replay.micro_batch(),
        replay.micro_batch(),
    ):
        pass


def test_a_dense_policy_is_refused() -> None:
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    with pytest.raises(RoutingError, match="routing_replay=off"):
        RouterReplay(LlamaForCausalLM(config))


ROUTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3MoeTopKRouter": ("qwen3_moe", {}),
    "Qwen3NextTopKRouter": ("qwen3_next", {"norm_topk_prob": True}),
    "Qwen3_5MoeTopKRouter": ("qwen3_5_moe", {}),
    "Glm4MoeTopkRouter": ("glm4_moe", {"routed_scaling_factor": 1.5}),
    "Glm4MoeLiteTopkRouter": ("glm4_moe_lite", {"routed_scaling_factor": 1.5}),
}


def test_the_weights_of_every_known_router_are_its_own() -> None:
    assert ROUTERS.keys() == WEIGHTS.keys()
    torch.manual_seed(0)
    for name, (family, more) in ROUTERS.items():
        module = import_module(f"transformers.models.{family}.modeling_{family}")
        config = SimpleNamespace(
            **{
                "num_experts_per_tok": TOP_K, "num_experts": EXPERTS, "num_local_experts": EXPERTS,
                "hidden_size": 16, "norm_topk_prob": True, "n_group": 2, "topk_group": 1, **more,
            }
        )  # fmt: skip
        router = getattr(module, name)(config)
        with torch.no_grad():
            router.weight.normal_()
            logits, weights, experts = router(torch.randn(20, 16))
            assert torch.allclose(WEIGHTS[name](router, logits, experts), weights), name


@pytest.mark.parametrize("shift", ["token", "layer"])
def test_shifted_routing_disagrees_where_true_routing_does_not(shift: str) -> None:
    torch.manual_seed(0)
    policy = qwen()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "gate.weight" in name:
                weight.normal_()
    replay = RouterReplay(policy)
    own = recorded(policy, replay)
    moved = own.roll(1, 0) if shift == "token" else own.roll(1, 1)
    _, fired = replayed(policy, replay, moved)
    assert fired.other_slots / fired.slots > 0.4
