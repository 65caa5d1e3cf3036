"""Recomputed activations: the same update with less memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conf.sections.training import RoutingRecomputeConfig, RoutingRolloutConfig
from runners.records.routing import Routing
from runners.training.local import LocalTrainer
from runners.training.recompute import LOGITS_CHUNK, compute_chosen_logprobs
from runners.training.routing.shape import read_routing_shape
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


@pytest.mark.parametrize("prompt", [0, 128])
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
    predicted_by = torch.randint(0, rows, (3 * rows,))  # some rows predict several, some none
    targets = torch.randint(0, 20, (3 * rows,))
    results = []
    for chunked in (False, True):
        hidden = torch.linspace(-1, 1, rows * 8).reshape(rows, 8).requires_grad_()
        head.zero_grad()
        logprobs = compute_chosen_logprobs(
            head, hidden, predicted_by, targets, 0.7, chunked=chunked
        )
        (logprobs[:, 0] * torch.arange(3 * rows)).sum().backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        assert head.weight.grad is not None
        results.append((logprobs.detach(), hidden.grad, head.weight.grad.clone()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


ROLLOUT = RoutingRolloutConfig(
    kind="rollout", on_fault="stop", shadow_every=0, alarm_disagreement=1.0, keep_steps=None
)
LENGTH = 128
"""Of the prompt."""


def make_routed(weights: Path, count: int, *, answer: int) -> list[list[Sample]]:
    """Return rollouts behind one prompt, with random experts, the same ones for the prompt."""
    shape = read_routing_shape(weights)
    assert shape is not None
    rng = np.random.default_rng(5)
    prompt = rng.integers(0, VOCAB, LENGTH)

    def route(tokens: int) -> np.ndarray:
        chance = rng.random((tokens, shape.layers, shape.experts))
        return shape.cast_ids(chance.argsort(axis=-1)[..., : shape.top_k])

    of_prompt = route(LENGTH)
    rollouts = []
    for index in range(count):
        tokens = np.concatenate([prompt, rng.integers(0, VOCAB, answer)]).astype(np.int32)
        mask = np.arange(len(tokens)) > LENGTH
        routing = Routing(
            np.concatenate([of_prompt, route(answer)]), np.arange(len(tokens)) < len(tokens) - 1
        )
        logprobs = np.where(mask, -4.5, 0).astype(np.float32)
        worth = 1.0 if index % 2 else -1.0
        rollouts.append([Sample(f"r{index}", tokens, mask, logprobs, worth, routing=routing)])
    return rollouts


@pytest.mark.parametrize("answer", [9, LENGTH // 2])
def test_replayed_routing_is_the_same_in_layers_that_are_computed_again(
    weights: Path, answer: int
) -> None:
    """With a prompt that they share: its nodes are those of all rollouts."""
    results = []
    for recompute in (False, True):
        trainer = make_trainer(
            weights, loss="reinforce", recompute=recompute, grad_clip=1e9, routing=ROLLOUT
        )
        rollouts = make_routed(weights, 2, answer=answer)
        (batch,) = trainer._batches([sample for (sample,) in rollouts])
        assert batch.nodes < sum(map(len, batch.paths))
        trainer.step(rollouts)
        results.append(gradients(trainer))
    assert sum(each.norm().item() for each in results[0]) > 0.1
    for kept, again in zip(*results, strict=True):
        torch.testing.assert_close(again, kept, rtol=1e-4, atol=1e-6)
    native = make_trainer(weights, loss="reinforce", recompute=True, grad_clip=1e9)
    native.step([[replace(sample, routing=None)] for (sample,) in rollouts])
    pairs = zip(gradients(native), results[0], strict=True)
    assert any(not torch.allclose(mine, theirs, rtol=0.1) for mine, theirs in pairs)


def test_the_trainer_s_own_routing_is_recorded_and_replayed_in_layers_that_are_computed_again(
    weights: Path,
) -> None:
    own = RoutingRecomputeConfig(kind="recompute")
    results = []
    for recompute in (False, True):
        trainer = make_trainer(weights, recompute=recompute, routing=own, epochs=2)
        metrics = trainer.step(with_prompt(make_rollouts(trainer, 4), 128))
        assert metrics["r3/replayed"] == 1.0
        results.append(gradients(trainer))
    for kept, again in zip(*results, strict=True):
        torch.testing.assert_close(again, kept, rtol=1e-3, atol=1e-6)
