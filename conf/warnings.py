"""Combinations that are legal and seldom meant: a run warns of them and goes on."""

from __future__ import annotations

from collections.abc import Iterator

from conf.schema import Config
from conf.sections.task import VerdictRewardConfig, sum_penalties
from conf.sections.training import LocalTrainerConfig, SlimeTrainerConfig, TrainerConfig


def find_warnings(config: Config) -> Iterator[str]:
    """Yield a warning, with its fix, for each such combination of a run that trains."""
    if not config.run.steps:
        return
    trainer = config.trainer
    if isinstance(trainer, LocalTrainerConfig) and trainer.credit == "turn":
        yield from _judge_turn_credit(config, trainer)
    every, steps = config.run.eval_every, config.run.steps
    if isinstance(trainer, SlimeTrainerConfig) and every and steps % every:
        yield (
            f"slime evaluates after every run.eval_every={every} steps alone, so not after the "
            f"last of run.steps={steps}; choose a divisor of it, or run.eval_every=0: after the "
            "last step only"
        )
    updates = _count_updates(trainer)
    recomputes = config.routing_replay.kind == "recompute"
    if recomputes and updates == 1 and isinstance(trainer, LocalTrainerConfig):
        yield (
            "routing_replay=recompute keeps the experts of a step's first update for the others, "
            "and there are none (trainer.minibatches × epochs = 1): it costs a forward pass and "
            "changes nothing; set routing_replay=off, or make more updates"
        )
    # on accepted rollouts alone it is maximum likelihood, which needs no ratio
    if trainer.loss == "reinforce" and updates > 1 and trainer.advantage != "rejection":
        yield (
            f"trainer.loss=reinforce has no ratio of probabilities, and each step makes {updates} "
            "updates (trainer.minibatches × epochs): from the second on the rollouts are of an "
            "older policy, and nothing corrects that; make one update, or choose trainer.loss=ppo, "
            "gspo or cispo"
        )


def _judge_turn_credit(config: Config, trainer: LocalTrainerConfig) -> Iterator[str]:
    if trainer.mean_of_losses != "constant":
        yield (
            f"trainer.credit=turn with trainer.aggregation={trainer.mean_of_losses}: the number of "
            "tokens by which it divides is the policy's own doing, which biases the gradient that "
            "credit by turn keeps unbiased (docs/algorithms.md); set trainer.aggregation=constant"
        )
    if isinstance(config.reward, VerdictRewardConfig) and not sum_penalties(config.reward):
        yield (
            "trainer.credit=turn compares what turns earn, and reward=tests without penalties pays "
            "at the end alone: every turn has its rollout's advantage; set trainer.credit=rollout, "
            "or a penalty such as reward.turn_penalty"
        )


def _count_updates(trainer: TrainerConfig) -> int:
    epochs = trainer.epochs if isinstance(trainer, LocalTrainerConfig) else 1
    return trainer.minibatches * epochs
