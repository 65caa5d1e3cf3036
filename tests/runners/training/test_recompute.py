"""Recomputed activations: the same update with less memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conf.compose import compose
from conf.errors import ConfigError
from runners.training.local import LocalTrainer
from runners.training.micro_batches import OPENING
from runners.training.recompute import LOGITS_CHUNK, compute_chosen_logprobs
from runners.training.sample import Sample
from tests.fakes.local_trainer import VOCAB, make_rollouts, make_trainer
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


def gradients(trainer: LocalTrainer) -> list[torch.Tensor]:
    return [p.grad for p in trainer.model.parameters() if p.grad is not None]


def with_prompt(rollouts: list[list[Sample]], tokens: int) -> list[list[Sample]]:
    """Return the rollouts behind a prompt that they share."""
    prompt = np.arange(tokens, dtype=np.int32) % VOCAB

    def grow(sample: Sample) -> Sample:
        return replace(
            sample,
            tokens=np.concatenate([prompt, sample.tokens]),
            loss_mask=np.concatenate([np.zeros(tokens, bool), sample.loss_mask]),
            logprobs=np.concatenate([np.zeros(tokens, np.float32), sample.logprobs]),
        )

    return [[grow(sample) for sample in rollout] for rollout in rollouts]


class Kept:
    """Bytes that the forward passes in it keep for the backward pass, weights left out."""

    def __init__(self, trainer: LocalTrainer) -> None:
        self.weights = {p.untyped_storage().data_ptr() for p in trainer.model.parameters()}
        self.storages: dict[int, torch.Tensor] = {}

    def __enter__(self) -> Kept:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept)
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in self.weights:
            self.storages[place] = tensor  # alive, so that no other takes its place
        return tensor

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.storages.values())


@pytest.mark.parametrize("prompt", [0, 2 * OPENING])
def test_recomputed_activations_give_the_same_gradients(weights: Path, prompt: int) -> None:
    kept, again = make_trainer(weights), make_trainer(weights, recompute=True)
    rollouts = with_prompt(make_rollouts(kept, 8), prompt)
    one, other = kept.step(rollouts), again.step(rollouts)
    assert one["loss/policy"] == pytest.approx(other["loss/policy"], abs=1e-5)
    pairs = list(zip(gradients(kept), gradients(again), strict=True))
    assert pairs
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)


def test_a_layer_keeps_its_input_only(weights: Path) -> None:
    found = {}
    for recompute in (False, True):
        trainer = make_trainer(weights, recompute=recompute)
        ids = torch.randint(0, VOCAB, (1, 256))
        with Kept(trainer) as kept:
            trainer.model.model(input_ids=ids, use_cache=False)  # type: ignore[operator]
        found[recompute] = kept.bytes
    assert found[True] < found[False] / 4


def test_auto_keeps_activations_on_a_cpu(weights: Path) -> None:
    assert not make_trainer(weights).recompute
    assert make_trainer(weights, recompute=True).recompute


def test_chunked_logits_give_the_same_logprobs_and_gradients() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 20, bias=False)
    rows = 2 * LOGITS_CHUNK + 3
    targets = torch.randint(0, 20, (rows,))
    results = []
    for chunked in (False, True):
        hidden = torch.linspace(-1, 1, rows * 8).reshape(rows, 8).requires_grad_()
        head.zero_grad()
        logprobs = compute_chosen_logprobs(head, hidden, targets, 0.7, chunked=chunked)
        (logprobs * torch.arange(rows)).sum().backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        assert head.weight.grad is not None
        results.append((logprobs.detach(), hidden.grad, head.weight.grad.clone()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("replay", ["rollout", "recompute"])
def test_recompute_is_refused_together_with_routing_replay(replay: str) -> None:
    with pytest.raises(ConfigError, match=f"trainer.recompute=true and routing_replay={replay}"):
        compose(["trainer.recompute=true", f"routing_replay={replay}"])
    compose([f"routing_replay={replay}"])
