"""Losses of plug-ins: they train as they say, and what is wrong with them is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conf.compose import compose
from conf.sections.plugin import PluginConfig
from runners.campaigns.preflight.plugins import find_plugin_errors
from runners.training.contract import TrainingError
from runners.training.local import LocalTrainer
from tests.fakes.local_trainer import VOCAB, logprobs, make_rollouts, make_trainer
from tests.fakes.tiny_model import write_tiny_model

SOURCE = """
import torch
from agentrl import TokenLosses


def ppo(tokens):
    ratio = (tokens.logprobs - tokens.old_logprobs).exp()
    low, high = ratio * tokens.advantages, ratio.clamp(0.8, 1.28) * tokens.advantages
    clipped = high < low
    return TokenLosses(-torch.minimum(low, high), clipped & (ratio < 1), clipped & (ratio > 1))

def entropy(tokens, *, weight: float = 1.0):
    return TokenLosses(weight * tokens.logprobs)

calls = []
def second(tokens):
    calls.append(len(tokens.rows))
    if len(calls) == 2:
        raise RuntimeError("the second")
    return TokenLosses(-tokens.logprobs)

def raises(tokens): raise KeyError("weights")
def exits(tokens): raise SystemExit(3)
def interrupts(tokens): raise KeyboardInterrupt
def bare(tokens): return -tokens.logprobs
def none(tokens): return TokenLosses(None)
def mean(tokens): return TokenLosses(-tokens.logprobs.mean())
def fixed(tokens): return TokenLosses(-tokens.old_logprobs)
def infinite(tokens): return TokenLosses(tokens.logprobs / 0)
def slope(tokens): return TokenLosses(((tokens.logprobs - tokens.old_logprobs) ** 2).sqrt())
def clips(tokens): return TokenLosses(tokens.logprobs, tokens.rows[:2] > 0)
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "loss.py"
    place.write_text(SOURCE)
    return place


def own(weights: Path, file: Path, name: str, minibatches: int = 1) -> LocalTrainer:
    plugin = PluginConfig(target=f"{file}:{name}")
    return make_trainer(weights, loss=plugin, minibatches=minibatches)


def parameters(trainer: LocalTrainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def test_a_plug_in_that_is_the_built_in_loss_trains_the_same_weights(
    weights: Path, file: Path
) -> None:
    built_in, plugged = (
        make_trainer(weights, minibatches=2),
        own(weights, file, "ppo", minibatches=2),
    )
    clipped = []
    for trainer in (built_in, plugged):
        rollouts = make_rollouts(trainer, 8)
        metrics = [trainer.step(rollouts) for _ in range(3)][-1]
        clipped.append([metrics[f"policy/clipped_{bound}"] for bound in ("low", "high")])
    assert clipped[0] == clipped[1]
    assert all(share > 0 for share in clipped[0])
    assert all(map(torch.equal, parameters(built_in), parameters(plugged)))


def test_samples_without_advantage_are_trained_by_a_loss_that_wants_them(
    weights: Path, file: Path
) -> None:
    trainer = own(weights, file, "entropy")
    rollouts = make_rollouts(trainer, 4, advantage=0.0)
    for _ in range(3):
        assert trainer.step(rollouts)["train/updates"] == 1
    for (sample,) in rollouts:
        now = logprobs(trainer, sample.tokens)
        assert (now - sample.logprobs)[sample.loss_mask].mean() < -0.01


def test_an_update_in_which_it_fails_is_left_out_and_the_others_are_made(
    weights: Path, file: Path
) -> None:
    trainer = own(weights, file, "second", minibatches=3)
    metrics = trainer.step(make_rollouts(trainer, 6))
    assert (metrics["train/updates"], metrics["train/updates_failed"]) == (2, 1)
    (reason,) = trainer.failed_updates
    assert reason.startswith("trainer.loss raised RuntimeError: the second")
    assert trainer.step(make_rollouts(trainer, 6))["train/updates_failed"] == 0
    assert not trainer.failed_updates


def test_a_step_in_which_every_update_fails_ends_training(weights: Path, file: Path) -> None:
    trainer = own(weights, file, "raises")
    before = parameters(trainer)
    with pytest.raises(TrainingError, match=r"no update of step 1 .*KeyError: 'weights'"):
        trainer.step(make_rollouts(trainer, 4))
    with pytest.raises(TrainingError, match="a gradient that is not finite"):
        own(weights, file, "slope").step(make_rollouts(trainer, 4))
    assert all(map(torch.equal, before, parameters(trainer)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "trainer.loss raised KeyError: 'weights'"),
        ("exits", "trainer.loss raised SystemExit: 3"),
        ("interrupts", "trainer.loss raised KeyboardInterrupt"),
        ("bare", "trainer.loss returned Tensor: it has to return TokenLosses(tensor)"),
        ("none", "trainer.loss returned NoneType: it has to return TokenLosses(tensor)"),
        ("mean", "trainer.loss: losses of shape [] for tokens of shape [7]"),
        ("clips", "trainer.loss: clipped_low of shape [2] for tokens of shape [7]"),
        ("fixed", "trainer.loss: losses that do not follow from tokens.logprobs"),
        ("infinite", "trainer.loss: a loss that is not finite"),
        ("slope", "trainer.loss: a gradient that is not finite"),
    ],
)
def test_what_is_wrong_with_it_is_found_before_the_run(file: Path, name: str, reason: str) -> None:
    (error,) = find_plugin_errors(compose([f"trainer.loss={file}:{name}"]))
    assert str(error).startswith(reason)


def test_a_right_one_is_not_refused(file: Path) -> None:
    lines = [f"trainer.loss={{target: '{file}:entropy', options: {{weight: 0.5}}}}"]
    assert not list(find_plugin_errors(compose(lines)))
