"""The local trainer and its checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from conf.sections.training import LocalTrainerConfig, RoutingReplayConfig
from runners.training import checkpoint
from runners.training.checkpoint import CheckpointError
from runners.training.local import NATIVE, LocalTrainer, TrainingError
from runners.training.sample import Sample
from tests.fakes.tiny_model import write_tiny_model

VOCAB = 96


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


def make_trainer(
    weights: Path, *, seed: int = 0, routing: RoutingReplayConfig = NATIVE, **changes: object
) -> LocalTrainer:
    """A trainer with the laptop's settings."""
    settings: dict[str, object] = {
        "kind": "local", "device": "cpu", "learning_rate": 1e-3, "betas": (0.9, 0.95),
        "weight_decay": 0.0, "clip_low": 0.2,
        "clip_high": 0.28, "grad_clip": 1.0, "minibatches": 1, "epochs": 1,
        "tokens_per_microbatch": 512, "normalize_std": True, "min_group": 2, "threads": 1,
        "train_unfinished": True,
        "correction": {"truncate": "none", "cap": 2.0, "reject_outside": None},
    } | changes  # fmt: skip
    return LocalTrainer(
        LocalTrainerConfig.model_validate(settings),
        weights=weights,
        temperature=0.7,
        seed=seed,
        routing=routing,
    )


def logprobs(trainer: LocalTrainer, tokens: np.ndarray) -> np.ndarray:
    """Logprob of each token given those before it, after temperature; 0 for the first."""
    with torch.no_grad():
        logits = (
            trainer.model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
            / trainer.temperature
        )
    chosen = logits.log_softmax(-1)[:-1].gather(
        1, torch.from_numpy(tokens[1:].astype(np.int64))[:, None]
    )[:, 0]
    return np.concatenate([[0.0], chosen.numpy()]).astype(np.float32)


def make_rollouts(
    trainer: LocalTrainer, count: int, *, advantage: float | None = None
) -> list[list[Sample]]:
    """On-policy rollouts of one sample of random tokens, half of them good and half bad."""
    rng = np.random.default_rng(1)
    rollouts = []
    for index in range(count):
        tokens = rng.integers(0, VOCAB, int(rng.integers(8, 24))).astype(np.int32)
        mask = np.zeros(len(tokens), dtype=bool)
        mask[len(tokens) // 2 :] = True
        worth = advantage if advantage is not None else (1.0 if index % 2 else -1.0)
        sampled = logprobs(trainer, tokens) * mask
        rollouts.append([Sample(f"r{index}", tokens, mask, sampled, worth)])
    return rollouts


def test_on_policy_samples_have_no_mismatch(weights: Path) -> None:
    trainer = make_trainer(weights)
    metrics = trainer.step(make_rollouts(trainer, 6))
    assert abs(metrics["policy/k3"]) < 1e-9
    assert metrics["policy/clip_fraction"] == 0.0


def test_training_makes_good_rollouts_likelier_and_bad_ones_less_likely(weights: Path) -> None:
    trainer = make_trainer(weights)
    rollouts = make_rollouts(trainer, 8)
    for _ in range(3):
        trainer.step(rollouts)
    gains = [
        float((logprobs(trainer, item.tokens) - item.logprobs)[item.loss_mask].mean())
        * item.advantage
        for (item,) in rollouts
    ]
    assert np.mean(gains) > 0.01
    assert min(gains) > 0


def test_samples_without_advantage_leave_the_policy_as_it_is(weights: Path) -> None:
    trainer = make_trainer(weights)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    metrics = trainer.step(make_rollouts(trainer, 4, advantage=0.0))
    assert metrics["train/updates"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_micro_batching_does_not_change_the_update(weights: Path) -> None:
    one, many = make_trainer(weights), make_trainer(weights, tokens_per_microbatch=30)
    rollouts = make_rollouts(one, 8)
    whole, parts = one.step(rollouts), many.step(rollouts)
    assert whole["loss/policy"] == pytest.approx(parts["loss/policy"], abs=1e-6)
    assert whole["policy/grad_norm"] == pytest.approx(parts["policy/grad_norm"], rel=1e-4)


def test_a_rollout_without_samples_counts_in_the_average(weights: Path) -> None:
    alone, beside = make_trainer(weights), make_trainer(weights)
    rollouts = make_rollouts(alone, 3)
    whole, half = alone.step(rollouts), beside.step([*rollouts, [], [], []])
    assert half["loss/policy"] == pytest.approx(whole["loss/policy"] / 2, abs=1e-7)
    assert half["policy/grad_norm"] == pytest.approx(whole["policy/grad_norm"] / 2, rel=1e-4)


def test_a_minibatch_of_rollouts_without_samples_is_no_update(weights: Path) -> None:
    trainer = make_trainer(weights, minibatches=4)
    metrics = trainer.step([*make_rollouts(trainer, 1), [], [], []])
    assert metrics["train/updates"] == 1


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_mend(weights: Path) -> None:
    trainer = make_trainer(weights)
    rollouts = make_rollouts(trainer, 2, advantage=float("inf"))
    with pytest.raises(TrainingError, match=r"trainer\.learning_rate"):
        trainer.step(rollouts)


def test_a_restored_trainer_goes_on_bit_for_bit(weights: Path, tmp_path: Path) -> None:
    trainer = make_trainer(weights, minibatches=2)
    rollouts = make_rollouts(trainer, 8)
    trainer.step(rollouts)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={"metrics": {"x": 1}}, keep=2)
    resumed = make_trainer(weights, seed=99, minibatches=2)
    checkpoint.restore(resumed, saved)
    went_on, went_on_resumed = trainer.step(rollouts), resumed.step(rollouts)
    assert went_on["loss/policy"] == went_on_resumed["loss/policy"]
    for a, b in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert saved.state() == {"metrics": {"x": 1}}


def test_only_the_newest_checkpoints_are_kept_and_partial_ones_are_not_seen(
    weights: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(weights)
    for step in range(1, 5):
        checkpoint.save(trainer, tmp_path, step=step, state={}, keep=2)
    (tmp_path / "step-000009.partial").mkdir()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-000003", "step-000004", "step-000009.partial"
    ]  # fmt: skip
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert newest.step == 4


def test_a_damaged_checkpoint_is_refused_by_name(weights: Path, tmp_path: Path) -> None:
    trainer = make_trainer(weights)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={}, keep=1)
    (saved.path / checkpoint.OPTIMIZER).write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="step-000001"):
        checkpoint.restore(make_trainer(weights), saved)


def test_weights_that_are_not_there_are_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot load the policy"):
        make_trainer(tmp_path / "nowhere")
