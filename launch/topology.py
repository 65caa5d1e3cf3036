"""Which GPU does what: training ranks and engines of a job, and every rule that they keep.

Invariant: a ``Topology`` that is returned is consistent; what is not is refused with all its
faults, each naming the key and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.cluster import ClusterLaunchConfig, SlimeTrainerConfig
from conf.sections.moe import LatentAttention, MoeModel


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """The sections of a configuration that a job on a cluster is made of."""

    config: Config
    model: MoeModel
    trainer: SlimeTrainerConfig
    launch: ClusterLaunchConfig


def cluster_job(config: Config) -> ClusterJob:
    """Return the cluster's view of ``config``; raises ConfigError if it is for one machine."""
    model, trainer, launch = config.model, config.trainer, config.launch
    if isinstance(launch, ClusterLaunchConfig) and isinstance(trainer, SlimeTrainerConfig):
        assert isinstance(model, MoeModel)  # a rule of the schema
        return ClusterJob(config, model, trainer, launch)
    raise ConfigError(
        [
            f"launch={launch.kind} has no scripts: choose launch=ssh, slurm, ray or kubernetes, "
            "with trainer=slime"
        ]
    )


@dataclass(frozen=True, slots=True)
class Topology:
    """A job's GPUs."""

    nodes: int
    gpus_per_node: int
    train_gpus: int
    rollout_gpus: int
    colocated: bool
    """Engines and training take turns on the same GPUs."""
    tensor: int
    pipeline: int
    context: int
    data: int
    """Replicas of the dense layers."""
    expert: int
    expert_tensor: int
    expert_data: int
    """Replicas of the experts."""
    stage_layers: tuple[int, ...]
    """Layers of each pipeline stage."""
    engines: int
    engine_gpus: int
    engine_data: int
    engine_tensor: int
    """Sharding of attention within an engine."""
    engine_expert: int
    rollouts: int
    """Of a step."""
    batch: int
    """Rollouts per optimizer update."""

    def to_dict(self) -> dict[str, Any]:
        """Return the topology as plain JSON values."""
        return asdict(self)


def topology(job: ClusterJob) -> Topology:
    """Return the job's topology; raises ConfigError with every fault."""
    broken = faults(job)
    if broken:
        raise ConfigError(broken)
    layout, trainer, launch = job.model.layout, job.trainer, job.launch
    train, rollout = _gpus(job)
    run = job.config.run
    rollouts = run.tasks_per_step * run.rollouts_per_task
    return Topology(
        nodes=launch.nodes,
        gpus_per_node=launch.gpus_per_node,
        train_gpus=train,
        rollout_gpus=rollout,
        colocated=not trainer.rollout_nodes,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        context=layout.context,
        data=train // (layout.tensor * layout.pipeline * layout.context),
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
        expert_data=train // (layout.pipeline * layout.expert * layout.expert_tensor),
        stage_layers=_stages(job.model),
        engines=rollout // layout.engine_gpus,
        engine_gpus=layout.engine_gpus,
        engine_data=layout.engine_data,
        engine_tensor=layout.engine_gpus // layout.engine_data,
        engine_expert=layout.engine_expert,
        rollouts=rollouts,
        batch=rollouts // trainer.minibatches,
    )


def faults(job: ClusterJob) -> list[str]:
    """Return every rule that the job breaks: key, value, what is wrong, the fix."""
    rules = (_nodes(job), _training(job), _experts(job), _stages_rules(job), _batch(job))
    engines = (_engines(job), _files(job))
    return [message for part in (*rules, *engines) for broken, message in part if broken]


Rule = tuple[bool, str]


def _gpus(job: ClusterJob) -> tuple[int, int]:
    """Return the GPUs of training and of the engines."""
    per_node, nodes = job.launch.gpus_per_node, job.launch.nodes
    sampling = job.trainer.rollout_nodes
    if not sampling:
        return nodes * per_node, nodes * per_node
    return (nodes - sampling) * per_node, sampling * per_node


def _nodes(job: ClusterJob) -> Iterator[Rule]:
    nodes, sampling = job.launch.nodes, job.trainer.rollout_nodes
    yield (
        sampling >= nodes,
        f"trainer.rollout_nodes={sampling} leaves none of launch.nodes={nodes} to train: lower it, "
        "or set trainer.rollout_nodes=0 (colocated)",
    )


def _divides(divisor: int, number: int) -> bool:
    return number % divisor == 0


def _training(job: ClusterJob) -> Iterator[Rule]:
    layout, attention = job.model.layout, job.model.architecture.attention
    train, _ = _gpus(job)
    size = layout.tensor * layout.pipeline * layout.context
    yield (
        train > 0 and not _divides(size, train),
        f"model.layout: tensor × pipeline × context = {size} does not divide the {train} training "
        "GPUs: change one of them, launch.nodes or launch.gpus_per_node",
    )
    per_node = job.launch.gpus_per_node
    yield (
        not _divides(layout.tensor, per_node),
        f"model.layout.tensor={layout.tensor} does not divide launch.gpus_per_node={per_node}: "
        "tensor parallelism would cross nodes; lower it to a divisor",
    )
    yield (
        not _divides(layout.tensor, attention.heads),
        f"model.layout.tensor={layout.tensor} does not divide the model's {attention.heads} heads: "
        "choose a divisor",
    )
    if not isinstance(attention, LatentAttention):
        groups = attention.groups
        yield (
            not _divides(layout.tensor, groups) and not _divides(groups, layout.tensor),
            f"model.layout.tensor={layout.tensor} and the model's {groups} key-value heads do not "
            "divide one another: choose a divisor or a multiple",
        )
    longest = layout.tokens_per_gpu * layout.context
    context = job.model.max_context_tokens
    yield (
        longest < context,
        f"model.layout: tokens_per_gpu × context = {longest} is less than "
        f"model.max_context_tokens={context}: a full sample would fit into no microbatch; raise "
        "one, or lower model.max_context_tokens",
    )


def _experts(job: ClusterJob) -> Iterator[Rule]:
    layout, number = job.model.layout, job.model.architecture.experts.number
    train, _ = _gpus(job)
    yield (
        not _divides(layout.expert, number),
        f"model.layout.expert={layout.expert} does not divide the model's {number} experts: choose "
        "a divisor",
    )
    size = layout.expert * layout.expert_tensor * layout.pipeline
    yield (
        train > 0 and not _divides(size, train),
        f"model.layout: expert × expert_tensor × pipeline = {size} does not divide the {train} "
        "training GPUs: change one of them, launch.nodes or launch.gpus_per_node",
    )
    yield (
        not _divides(layout.expert_tensor, job.model.architecture.experts.ffn),
        f"model.layout.expert_tensor={layout.expert_tensor} does not divide an expert's "
        f"{job.model.architecture.experts.ffn}: choose a divisor",
    )
    yield (
        layout.dispatcher == "deepep" and layout.expert * layout.expert_tensor == 1,
        "model.layout.dispatcher=deepep has nothing to send with model.layout.expert=1: choose "
        "alltoall",
    )


def _stages(model: MoeModel) -> tuple[int, ...]:
    layers, layout = model.architecture.layers, model.layout
    if layout.last_stage_layers is None:
        return (layers // layout.pipeline,) * layout.pipeline
    others = layout.pipeline - 1
    return (*(((layers - layout.last_stage_layers) // others,) * others), layout.last_stage_layers)


def _stages_rules(job: ClusterJob) -> Iterator[Rule]:
    layers, layout = job.model.architecture.layers, job.model.layout
    last, stages = layout.last_stage_layers, layout.pipeline
    if last is None:
        yield (
            not _divides(stages, layers),
            f"model.layout.pipeline={stages} does not divide the model's {layers} layers: choose "
            f"a divisor, or set model.layout.last_stage_layers={layers - _near(layers, stages)}",
        )
        return
    yield (
        stages == 1,
        f"model.layout.last_stage_layers={last} is for several stages, and "
        "model.layout.pipeline=1: set model.layout.last_stage_layers=null",
    )
    rest = layers - last
    yield (
        stages > 1 and (rest < stages - 1 or not _divides(stages - 1, rest)),
        f"model.layout.last_stage_layers={last} leaves {rest} of the model's {layers} layers, "
        f"which {stages - 1} stages cannot share: set it to {layers - _near(layers, stages)}",
    )


def _near(layers: int, stages: int) -> int:
    """Return the layers of all stages but the last, if those have as even a share as can be."""
    return (stages - 1) * -(-layers // stages) if stages < layers else stages - 1


def _batch(job: ClusterJob) -> Iterator[Rule]:
    run, layout = job.config.run, job.model.layout
    rollouts, updates = run.tasks_per_step * run.rollouts_per_task, job.trainer.minibatches
    train, _ = _gpus(job)
    size = layout.tensor * layout.pipeline * layout.context
    step = f"run.tasks_per_step × run.rollouts_per_task = {rollouts}"
    yield (
        not _divides(updates, rollouts),
        f"trainer.minibatches={updates} does not divide {step}: change one of them",
    )
    data = max(1, train // size)
    yield (
        _divides(size, max(train, 0)) and not _divides(data * updates, rollouts),
        f"{step} does not split into trainer.minibatches={updates} updates over {data} parallel "
        f"replicas: make it a multiple of {data * updates}",
    )


def _engines(job: ClusterJob) -> Iterator[Rule]:
    layout, model = job.model.layout, job.model.architecture
    per_node = job.launch.gpus_per_node
    _, rollout = _gpus(job)
    gpus, data, expert = layout.engine_gpus, layout.engine_data, layout.engine_expert
    yield (
        not _divides(gpus, rollout),
        f"model.layout.engine_gpus={gpus} does not divide the {rollout} GPUs that sample: change "
        "it, launch.nodes or trainer.rollout_nodes",
    )
    yield (
        not _divides(gpus, per_node) and not _divides(per_node, gpus),
        f"model.layout.engine_gpus={gpus} is neither a part nor a multiple of "
        f"launch.gpus_per_node={per_node}: choose one",
    )
    yield (
        not _divides(data, gpus),
        f"model.layout.engine_data={data} does not divide model.layout.engine_gpus={gpus}: choose "
        "a divisor",
    )
    yield (
        not _divides(expert, gpus) or not _divides(expert, model.experts.number),
        f"model.layout.engine_expert={expert} must divide model.layout.engine_gpus={gpus} and the "
        f"model's {model.experts.number} experts: choose a common divisor",
    )
    tensor = gpus // data
    yield (
        _divides(data, gpus) and not _divides(tensor, model.attention.heads),
        f"model.layout: engine_gpus / engine_data = {tensor} does not divide the model's "
        f"{model.attention.heads} heads: raise engine_data",
    )


def _files(job: ClusterJob) -> Iterator[Rule]:
    launch, model, task = job.launch, job.model, job.config.task
    paths = {
        "launch.shared_dir": launch.shared_dir,
        "launch.slime_dir": launch.slime_dir,
        "launch.megatron_dir": launch.megatron_dir,
        "model.path": model.path,
        "model.tokenizer": model.tokenizer,
        "task.path": getattr(task, "path", None),
    }
    for key, path in paths.items():
        yield (
            path is not None and not str(path).startswith("/"),
            f"{key}={path} is relative, and every node must find it: give the absolute path",
        )
    yield (
        launch.ray_port == launch.dashboard_port,
        f"launch.ray_port and launch.dashboard_port are both {launch.ray_port}: change one",
    )
