"""The local trainer and its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runners.records.checkpoints import OPTIMIZER, CheckpointError, find_latest, remove_old
from runners.training import checkpoint
from runners.training.contract import TrainingError
from runners.training.local import LocalTrainer
from runners.training.losses import replace_rounded
from runners.training.sample import Sample
from tests.fakes.local_trainer import VOCAB, logprobs, make_rollouts, make_trainer
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


def test_on_policy_samples_have_no_mismatch(weights: Path) -> None:
    trainer = make_trainer(weights)
    metrics = trainer.step(make_rollouts(trainer, 6))
    assert abs(metrics["policy/k3"]) < 1e-9
    assert (metrics["policy/clipped_low"], metrics["policy/clipped_high"]) == (0.0, 0.0)
    assert metrics["policy/ess"] == pytest.approx(1.0)
    assert (metrics["policy/truncated"], metrics["policy/rejected"]) == (0.0, 0.0)


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


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_fix(weights: Path) -> None:
    trainer = make_trainer(weights)
    rollouts = make_rollouts(trainer, 2, advantage=float("inf"))
    with pytest.raises(TrainingError, match=r"trainer\.learning_rate"):
        trainer.step(rollouts)


def test_a_restored_trainer_continues_bit_for_bit(weights: Path, tmp_path: Path) -> None:
    trainer = make_trainer(weights, minibatches=2)
    rollouts = make_rollouts(trainer, 8)
    trainer.step(rollouts)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={"metrics": {"x": 1}})
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
        checkpoint.save(trainer, tmp_path, step=step, state={})
        remove_old(tmp_path, keep=2, best=None)
    (tmp_path / "step-000009.partial").mkdir()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-000003", "step-000004", "step-000009.partial"
    ]  # fmt: skip
    newest = find_latest(tmp_path)
    assert newest is not None
    assert newest.step == 4


def test_a_damaged_checkpoint_is_refused_by_name(weights: Path, tmp_path: Path) -> None:
    trainer = make_trainer(weights)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={})
    (saved.path / OPTIMIZER).write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="step-000001"):
        checkpoint.restore(make_trainer(weights), saved)


def test_weights_that_are_not_there_are_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot load the policy"):
        make_trainer(tmp_path / "nowhere")


def gradients(trainer: LocalTrainer) -> list[torch.Tensor]:
    """Return the gradients of the last update, as the optimizer used them."""
    return [each.grad for each in trainer.model.parameters() if each.grad is not None]


def test_the_gradient_is_clipped_to_its_largest_norm(weights: Path) -> None:
    trainer = make_trainer(weights, grad_clip=1e-3)
    metrics = trainer.step(make_rollouts(trainer, 4))
    assert metrics["policy/grad_norm"] > 1e-2, "the metric is the norm before the clip"
    norm = torch.stack([grad.norm() for grad in gradients(trainer)]).norm().item()
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_the_optimizer_s_moments_decay_at_the_configured_rates(weights: Path) -> None:
    trainer = make_trainer(weights, betas=(0.5, 0.75))
    trainer.step(make_rollouts(trainer, 4))
    state_of = trainer.optimizer.state
    states = [state_of[each] for each in trainer.model.parameters() if state_of.get(each)]
    assert len(states) == len(gradients(trainer)) > 0
    for state, grad in zip(states, gradients(trainer), strict=True):
        torch.testing.assert_close(state["exp_avg"], 0.5 * grad)
        torch.testing.assert_close(state["exp_avg_sq"], 0.25 * grad.square())


def test_weight_decay_is_decoupled_from_the_gradient_and_of_matrices_alone(weights: Path) -> None:
    without, decayed = make_trainer(weights), make_trainer(weights, weight_decay=0.5)
    before = [parameter.detach().clone() for parameter in without.model.parameters()]
    rollouts = make_rollouts(without, 4)
    without.step(rollouts)
    decayed.step(rollouts)
    trained = zip(before, without.model.parameters(), decayed.model.parameters(), strict=True)
    for start, plain, shrunk in trained:
        decay = 0.5 if start.dim() > 1 else 0.0
        torch.testing.assert_close(shrunk, plain - 1e-3 * decay * start)


@pytest.mark.parametrize("several", [{}, {"minibatches": 2, "epochs": 2}])
def test_the_last_bits_of_the_engines_logprobs_do_not_reach_the_weights(
    several: dict[str, Any], weights: Path
) -> None:
    one, other = make_trainer(weights, **several), make_trainer(weights, **several)
    rollouts = make_rollouts(one, 8)
    noise = np.random.default_rng(0)
    shaken = [
        [
            replace(
                sample,
                logprobs=sample.logprobs
                + sample.loss_mask * noise.normal(0, 1e-6, len(sample.tokens)).astype(np.float32),
            )
            for sample in rollout
        ]
        for rollout in rollouts
    ]
    one.step(rollouts)
    other.step(shaken)
    assert equal_weights(one, other)


def test_a_difference_that_is_no_rounding_stays_in_the_ratio() -> None:
    own, rollout = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.00001, -2.001, -2.5])
    old = replace_rounded(own, rollout)
    assert old.tolist() == [own[0].item(), rollout[1].item(), rollout[2].item()]


def test_the_order_of_a_rollouts_segments_does_not_reach_the_weights(weights: Path) -> None:
    one, other = make_trainer(weights), make_trainer(weights)
    rollouts = make_rollouts(one, 6)
    # concurrent sub-agents: segments of one length and one opening, in order of arrival
    rng = np.random.default_rng(2)
    opening = rng.integers(0, VOCAB, 64).astype(np.int32)
    segments = []
    for _ in range(4):
        tokens = np.concatenate([opening, rng.integers(0, VOCAB, 8).astype(np.int32)])
        mask = np.arange(len(tokens)) >= 64
        segments.append(Sample("r0", tokens, mask, logprobs(one, tokens) * mask, 1.0))
    one.step([segments, *rollouts[1:]])
    other.step([segments[::-1], *rollouts[1:]])
    assert equal_weights(one, other)


def equal_weights(one: LocalTrainer, other: LocalTrainer) -> bool:
    """Return whether two trainers' weights are equal bit for bit."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_restored_trainer_knows_how_many_steps_it_has_done(weights: Path, tmp_path: Path) -> None:
    trainer = make_trainer(weights)
    trainer.step(make_rollouts(trainer, 4))
    saved = checkpoint.save(trainer, tmp_path, step=7, state={"metrics": {}})
    restored = make_trainer(weights)
    checkpoint.restore(restored, saved)
    assert restored.steps == 7  # the step counter decides when a shadow forward pass is due


def test_a_checkpoint_holds_its_tokenizer_and_chat_template(weights: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "notes.txt"):
        (tokenizer / name).write_text(name)
    trainer = make_trainer(weights)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={"metrics": {}}, tokenizer=tokenizer)
    names = {file.name for file in saved.path.iterdir()}
    assert names >= {"tokenizer.json", "chat_template.jinja", "config.json"}
    assert "notes.txt" not in names


@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [("gspo", "segment"), ("cispo", "token"), ("reinforce", "constant"), ("ppo", "token")],
)
def test_every_loss_and_mean_makes_good_rollouts_likelier_than_bad_ones(
    weights: Path, loss: str, aggregation: str
) -> None:
    trainer = make_trainer(weights, loss=loss, aggregation=aggregation, minibatches=2)
    rollouts = make_rollouts(trainer, 8)
    trainer.step(rollouts)
    gains = [
        float((logprobs(trainer, item.tokens) - item.logprobs)[item.loss_mask].mean())
        * item.advantage
        for (item,) in rollouts
    ]
    assert np.mean(gains) > 0
