"""Logprobs of chosen tokens in one buffer: what autograd computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runners.training.chosen_logprobs import CACHED, choose_logprobs

TEMPERATURE = 0.7


def choose_by_autograd(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    scaled = logits / TEMPERATURE
    total = scaled.logsumexp(dim=1)
    places = rows * logits.shape[1] + targets
    logprobs = scaled.flatten().index_select(0, places) - total.index_select(0, rows)
    entropies = total - (scaled * (scaled - total[:, None]).exp()).sum(dim=1)
    return logprobs, entropies.detach()


@pytest.mark.parametrize("entropies", [True, False])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-7), (torch.float64, 1e-15)])
@pytest.mark.parametrize(("count", "vocabulary"), [(600, 1000), (40, CACHED), (3, 17)])
def test_logprobs_entropies_and_gradients_are_autograd_s(
    count: int, vocabulary: int, dtype: torch.dtype, near: float, entropies: bool
) -> None:
    """In several parts, in parts of a large vocabulary, in one; some rows predict several tokens,
    some the same token twice, some nothing.
    """
    generator = torch.Generator().manual_seed(count)
    logits = torch.randn(count, vocabulary, generator=generator, dtype=dtype).requires_grad_()
    rows = torch.randint(0, count, (2 * count,), generator=generator)
    targets = torch.randint(0, vocabulary, (2 * count,), generator=generator)
    rows, targets = torch.cat([rows, rows[:9]]), torch.cat([targets, targets[:9]])
    given = torch.randn(len(rows), generator=generator, dtype=dtype)
    wanted = choose_by_autograd(logits, rows, targets)
    [gradient] = torch.autograd.grad((wanted[0] * given).sum(), logits)
    found = choose_logprobs(logits * 1.0, rows, targets, TEMPERATURE, entropies=entropies)
    [own] = torch.autograd.grad((found[0] * given).sum(), logits)
    torch.testing.assert_close(found[0], wanted[0], rtol=near, atol=near)
    torch.testing.assert_close(own, gradient, rtol=near, atol=near)
    if entropies:
        torch.testing.assert_close(found[1], wanted[1], rtol=near, atol=near)
        assert not found[1].requires_grad
    else:
        assert len(found[1]) == 0


@pytest.mark.parametrize("entropies", [True, False])
def test_nothing_is_kept_where_no_gradient_is_wanted(entropies: bool) -> None:
    logits, chosen = torch.randn(5, 9), (torch.arange(5), torch.arange(5))
    wanted = choose_by_autograd(logits, *chosen)
    with torch.no_grad():
        found = choose_logprobs(logits.clone(), *chosen, TEMPERATURE, entropies=entropies)
    torch.testing.assert_close(found[0], wanted[0])
    assert found[0].grad_fn is None


def test_gradients_are_computed_once() -> None:
    """They overwrite what they are computed from: a second pass would be wrong, so it fails."""
    logits = torch.randn(5, 9, requires_grad=True)
    chosen = torch.arange(5), torch.arange(5)
    total = choose_logprobs(logits * 1.0, *chosen, TEMPERATURE, entropies=False)[0].sum()
    total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()  # type: ignore[no-untyped-call]
