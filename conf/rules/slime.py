"""Rules of ``trainer=slime``: it trains on clusters, and keys that both trainers have mean the same
or are refused by name.

What slime computes is read from its source: ``slime/backends/megatron_utils/loss.py``,
``slime/utils/ppo_utils.py``, ``slime/rollout/sglang_rollout.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conf.rules.rule import Rule
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.cluster_model import ClusterModel
from conf.sections.engine import EmbeddedEngineConfig, EngineConfig
from conf.sections.launch import LaunchConfig
from conf.sections.model import (
    ModelConfig,
)
from conf.sections.plugin import PluginConfig
from conf.sections.scenario import (
    ScenarioConfig,
)
from conf.sections.task import (
    JsonlTaskConfig,
    MixtureTaskConfig,
    TaskConfig,
)
from conf.sections.training import (
    RoutingReplayConfig,
    RoutingRolloutConfig,
    SlimeTrainerConfig,
    TrainerConfig,
)


def slime_rules(
    trainer: TrainerConfig,
    launch: LaunchConfig,
    model: ModelConfig,
    task: TaskConfig,
    scenario: ScenarioConfig,
) -> Iterator[Rule]:
    """Yield the rules of slime: it trains on clusters, and reads certain models and tasks."""
    on_cluster = isinstance(launch, ClusterLaunchConfig)
    if not isinstance(trainer, SlimeTrainerConfig):
        yield (
            on_cluster,
            f"trainer={trainer.kind} trains on one machine, and launch={launch.kind} is for "
            "several: choose trainer=slime",
        )
        return
    yield (
        not isinstance(model, ClusterModel),
        f"model={model.kind} is not in the table that trainer=slime takes layers and layout "
        "from: choose one with an architecture, e.g. model=qwen3_30b_a3b, or model=checkpoint",
    )
    yield (
        isinstance(model, ClusterModel) and model.path is None,
        "model.path=null, and trainer=slime needs the Hugging Face checkpoint: set model.path to "
        "its directory as the nodes see it",
    )
    yield (
        not on_cluster,
        f"launch={launch.kind} cannot start trainer=slime, which runs on Ray: choose "
        "launch=ssh, slurm, ray or kubernetes",
    )
    yield (
        not isinstance(task, JsonlTaskConfig | MixtureTaskConfig),
        f"task={task.kind} has no file that slime's data source could read: choose task=jsonl "
        "and set task.path as the nodes see it, or task=mixture",
    )
    window = getattr(scenario, "window_tokens", None)
    yield (
        window is not None and window >= model.max_context_tokens,
        f"scenario.window_tokens={window} is never reached below model.max_context_tokens="
        f"{model.max_context_tokens}: lower scenario.window_tokens",
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
    routing: RoutingReplayConfig,
    engine: EngineConfig,
) -> Iterator[Rule]:
    """Yield the rules of what slime does itself: engines, logprobs, routing replay."""
    if not isinstance(trainer, SlimeTrainerConfig):
        return
    if isinstance(routing, RoutingRolloutConfig):
        yield (
            routing.shadow_every > 0,
            f"routing_replay.shadow_every={routing.shadow_every} is a forward pass without replay, "
            "which trainer=slime cannot make: set routing_replay.shadow_every=0",
        )
    yield (
        not isinstance(engine, EmbeddedEngineConfig),
        f"engine={engine.kind} is not asked with trainer=slime, which starts SGLang servers of its "
        "own: drop engine=…; model.layout has their size, model.parsers their parsers",
    )


def slime_engine_rules(
    trainer: TrainerConfig, model: ModelConfig, launch: LaunchConfig, routing: RoutingReplayConfig
) -> Iterator[Rule]:
    """Yield the rules of the engines that slime starts: drafts, FP8, how new weights reach them."""
    if not isinstance(trainer, SlimeTrainerConfig) or not isinstance(model, ClusterModel):
        return
    drafts = model.speculative
    yield (
        drafts.steps > 0 and isinstance(routing, RoutingRolloutConfig),
        "routing_replay=rollout records the experts of every token, and nothing shows that SGLang "
        "does so for tokens that model.speculative drafts: set model.speculative.steps=0, or "
        "choose routing_replay=recompute or off",
    )
    yield (
        drafts.path is not None and drafts.train_weight > 0,
        "model.speculative.train_weight trains the model's own layers, and "
        f"model.speculative.path={drafts.path} drafts with another model, which slime does not "
        "train: set one of them only",
    )
    yield (
        model.fp8_path is not None and model.fp8_path == model.path,
        "model.fp8_path is model.path, from which training starts in bfloat16: give both "
        "checkpoints (slime's tools/convert_hf_to_fp8.py makes one of the other)",
    )
    if trainer.weight_sync == "full":
        return
    yield (
        trainer.rollout_nodes == 0,
        "trainer.weight_sync=delta is for engines on nodes of their own, and with "
        "trainer.rollout_nodes=0 they share the trainer's GPUs: raise it, or choose full",
    )
    yield (
        trainer.weight_sync_dir is None,
        "trainer.weight_sync=delta keeps a checkpoint on each engine's node: set "
        "trainer.weight_sync_dir to a directory of the nodes' own disks",
    )
    shared = launch.shared_dir if isinstance(launch, ClusterLaunchConfig) else None
    own = trainer.weight_sync_dir
    yield (
        own is not None and shared is not None and Path(own).is_relative_to(Path(shared)),
        f"trainer.weight_sync_dir={own} is within launch.shared_dir={shared}, and every node must "
        "have one of its own: name a directory of the nodes' disks",
    )
    yield (
        trainer.correction.truncate == "none",
        "trainer.weight_sync=delta leaves engines with the first weights for one step after a job "
        "was resumed, and trainer.correction.truncate=none takes their samples as the policy's: "
        "set it to token",
    )
