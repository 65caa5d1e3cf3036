"""Rules of ``trainer=slime``: keys that both trainers have mean the same, or are refused by name.

What slime computes is read from its source: ``slime/backends/megatron_utils/loss.py``,
``slime/utils/ppo_utils.py``, ``slime/rollout/sglang_rollout.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules import Rule
from conf.sections.engine import EmbeddedEngineConfig, EngineConfig
from conf.sections.plugin import PluginConfig
from conf.sections.rollout import RolloutConfig
from conf.sections.training import (
    RoutingReplayConfig,
    RoutingRolloutConfig,
    SlimeTrainerConfig,
    TrainerConfig,
)


def slime_algorithm_rules(trainer: TrainerConfig, routing: RoutingReplayConfig) -> Iterator[Rule]:
    """Yield the rules of losses, means, corrections and penalties that slime does not have."""
    if not isinstance(trainer, SlimeTrainerConfig):
        return
    yield (
        isinstance(trainer.loss, PluginConfig),
        "trainer.loss is a plug-in, and trainer=slime computes the loss itself: choose "
        "trainer.loss=ppo, gspo, cispo or reinforce, or trainer=local",
    )
    mean = trainer.mean_of_losses
    yield (
        mean in ("constant", "segment") and trainer.advantage == "dr_grpo",
        "trainer.advantage=dr_grpo divides a rollout's loss by a constant, and trainer=slime "
        "averages it: choose trainer.advantage=grpo trainer.normalize_std=false",
    )
    yield (
        mean in ("constant", "segment") and trainer.advantage != "dr_grpo",
        f"trainer.aggregation={mean}, and trainer=slime averages over rollouts or tokens: choose "
        "trainer.aggregation=rollout or token",
    )
    correction = trainer.correction
    yield (
        correction.truncate == "sequence",
        "trainer.correction.truncate=sequence, and trainer=slime truncates by token: choose "
        "trainer.correction.truncate=token or none",
    )
    for name in ("mask_outside", "reject_outside", "reject_negative_above"):
        yield (
            getattr(correction, name) is not None,
            f"trainer.correction.{name} leaves tokens out, which trainer=slime does not: set it to "
            "null, or bound the weights with trainer.correction.truncate=token, cap and floor",
        )
    yield (
        correction.truncate == "none" and routing.kind == "recompute",
        "routing_replay=recompute records the experts while it computes the trainer's own "
        "logprobs, which trainer=slime leaves out with trainer.correction.truncate=none: set it to "
        "token, or choose routing_replay=rollout",
    )
    yield (
        trainer.kl.weight > 0 and trainer.kl.place == "reward",
        "trainer.kl.place=reward, and trainer=slime has no reward per token with these losses: "
        "choose trainer.kl.place=loss with trainer.kl.estimator=k2 or k3",
    )


def slime_step_rules(
    trainer: TrainerConfig,
    rollout: RolloutConfig,
    routing: RoutingReplayConfig,
    engine: EngineConfig,
) -> Iterator[Rule]:
    """Yield the rules of what slime does itself: steps, engines, routing replay."""
    if not isinstance(trainer, SlimeTrainerConfig):
        return
    yield (
        rollout.spare_groups > 0,
        f"rollout.spare_groups={rollout.spare_groups} replaces groups, and trainer=slime trains "
        "each step on the tasks that it begins with: set rollout.spare_groups=0, or choose "
        "trainer=local",
    )
    if isinstance(routing, RoutingRolloutConfig):
        yield (
            routing.shadow_every > 0 or routing.alarm_disagreement < 1,
            "routing_replay.shadow_every and routing_replay.alarm_disagreement are checks of "
            "trainer=local, and with trainer=slime Megatron replays without them: set "
            "routing_replay.shadow_every=0 and routing_replay.alarm_disagreement=1",
        )
    yield (
        not isinstance(engine, EmbeddedEngineConfig),
        f"engine={engine.kind} is not asked with trainer=slime, which starts SGLang servers of its "
        "own: drop engine=…; model.layout has their size, model.parsers their parsers",
    )
