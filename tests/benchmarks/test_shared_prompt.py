"""A shared prompt, run once: the same states and gradients as if every row had run it."""

from __future__ import annotations

import torch

from tests.benchmarks.shared_prompt import compute_hidden_states
from tests.starting_policy.network import make_network


def test_a_prefix_run_once_gives_the_same_states_and_gradients() -> None:
    network = make_network(vocabulary=300, context=64, seed=0)
    tokens = torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1))
    tokens[:, :8] = tokens[0, :8]
    whole = compute_hidden_states(network.model, tokens, 0)[:, 8:]
    whole.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None
    }
    network.zero_grad()
    once = compute_hidden_states(network.model, tokens, 8)
    once.square().sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(once, whole, atol=1e-5, rtol=1e-4)
    for name, parameter in network.named_parameters():
        if name in gradients:
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-3, rtol=1e-3)
