"""Rules of the trainer: its algorithm, supervised steps, teacher, devices and sinks."""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.observe import ObserveConfig
from conf.sections.plugin import PluginConfig
from conf.sections.rollout import RolloutConfig
from conf.sections.run import RunConfig, SamplingConfig
from conf.sections.training import (
    LocalTrainerConfig,
    SlimeTrainerConfig,
    TrainerConfig,
)


def algorithm_rules(trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of advantages and losses: no key is accepted where it does nothing."""
    accepts = trainer.advantage == "rejection"
    yield (
        accepts and trainer.accept_reward is None,
        "trainer.advantage=rejection trains rollouts with at least trainer.accept_reward, which is "
        "null: set it, e.g. trainer.accept_reward=1",
    )
    yield (
        not accepts and trainer.accept_reward is not None,
        f"trainer.accept_reward={trainer.accept_reward} is of trainer.advantage=rejection alone: "
        "set it to null",
    )
    yield (
        trainer.clip_dual is not None and trainer.loss != "ppo",
        f"trainer.clip_dual={trainer.clip_dual} is of trainer.loss=ppo alone: set it to null",
    )
    yield (
        trainer.kl.weight > 0 and trainer.kl.estimator == "k1" and trainer.kl.place == "loss",
        "trainer.kl.estimator=k1 with trainer.kl.place=loss has an expected gradient of 0: choose "
        "k2 or k3, or trainer.kl.place=reward",
    )
    yield (
        trainer.min_learning_rate > trainer.learning_rate,
        f"trainer.min_learning_rate={trainer.min_learning_rate:g} is above trainer.learning_rate="
        f"{trainer.learning_rate:g}: lower it",
    )
    yield (
        trainer.decay != "constant" and 0 < trainer.decay_steps <= trainer.warmup_steps,
        f"trainer.warmup_steps={trainer.warmup_steps} leaves nothing of trainer.decay_steps="
        f"{trainer.decay_steps}: lower it",
    )


def supervised_rules(run: RunConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of supervised steps: they have examples, and are steps of the run."""
    if not isinstance(trainer, LocalTrainerConfig):
        return
    path, steps = trainer.sft.path, trainer.sft.steps
    yield (
        path is not None and not steps,
        f"trainer.sft.path={path} and trainer.sft.steps=0: no step would train on its examples; "
        "set trainer.sft.steps",
    )
    yield (
        path is None and steps > 0,
        f"trainer.sft.steps={steps} and trainer.sft.path=null: there are no examples; set "
        "trainer.sft.path to a file of dump-trajectories --format sft",
    )
    yield (
        steps > run.steps,
        f"trainer.sft.steps={steps} are the first of run.steps={run.steps}: raise run.steps",
    )


def teacher_rules(
    trainer: TrainerConfig, sampling: SamplingConfig, rollout: RolloutConfig
) -> Iterator[Rule]:
    """Yield the rules of a teacher: both policies are compared at one temperature, and groups
    without a signal of their rewards have one.
    """
    if not isinstance(trainer, LocalTrainerConfig) or trainer.distill.url is None:
        return
    yield (
        sampling.temperature != 1.0,
        f"sampling.temperature={sampling.temperature:g} and trainer.distill.url: a server's "
        "logprobs of given tokens are those at temperature 1; set sampling.temperature=1",
    )
    yield (
        rollout.replace_flat,
        "rollout.replace_flat=true replaces groups that trainer.distill.url could train: set it "
        "to false",
    )


def device_rules(trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of several devices: the loss is one that every process can compute alone, and
    what is divided among them is worth it.
    """
    if isinstance(trainer, LocalTrainerConfig):
        yield (
            trainer.shard != "none" and trainer.devices == 1,
            f"trainer.shard={trainer.shard} divides among devices, and trainer.devices=1: raise "
            "trainer.devices, or set trainer.shard=none",
        )
        yield (
            trainer.shard != "none" and trainer.lora.rank > 0,
            f"trainer.shard={trainer.shard}, and trainer.lora.rank={trainer.lora.rank}: a base "
            "with adapters is not divided; set trainer.shard=none, or trainer.lora.rank=0",
        )
        yield (
            trainer.devices > 1 and isinstance(trainer.loss, PluginConfig),
            f"trainer.devices={trainer.devices}, and trainer.loss is a plug-in, whose failure in "
            "one process would hold up the others: set trainer.devices=1, or choose a loss by name",
        )


def sink_rules(observe: ObserveConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules that sinks of steps are for the driver's own training loop."""
    chosen = {
        "observe.wandb.project": observe.wandb.project,
        "observe.mlflow.uri": observe.mlflow.uri,
    }
    for key, value in chosen.items():
        yield (
            value is not None and isinstance(trainer, SlimeTrainerConfig),
            f"{key}={value}: trainer=slime has loggers of its own: leave it out, and give slime's "
            "flags in launch.extra_flags (--use-wandb …)",
        )
    yield (
        bool(observe.sinks) and isinstance(trainer, SlimeTrainerConfig),
        "observe.sinks are fed by trainer=local, and trainer=slime has loggers of its own: leave "
        "them out, or read metrics.jsonl of the run",
    )
