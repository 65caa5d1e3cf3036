"""Divide a job's GPUs into training ranks and engines, and check the rules of that division.

Invariant: a ``Topology`` that is returned keeps every rule. A job that breaks rules is refused with
all of them, each with its key and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.architecture import Architecture, LatentAttention
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.cluster_model import CheckpointModel, ClusterModel, TableModel
from conf.sections.training import SlimeTrainerConfig
from conf.task_sets import list_sets
from launch.checkpoint_config import CheckpointConfigError, read_architecture


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A configuration for a cluster, with its sections in the types that only clusters have."""

    config: Config
    model: ClusterModel
    architecture: Architecture
    trainer: SlimeTrainerConfig
    launch: ClusterLaunchConfig


def cluster_job(config: Config) -> ClusterJob:
    """Return ``config`` as a job on a cluster; raises ConfigError if it is for one machine, and
    CheckpointConfigError if the model's ``config.json`` is needed and cannot be used.
    """
    model, trainer, launch = config.model, config.trainer, config.launch
    if isinstance(launch, ClusterLaunchConfig) and isinstance(trainer, SlimeTrainerConfig):
        assert isinstance(model, ClusterModel)  # by conf.rules.slime
        return ClusterJob(config, model, find_architecture(model), trainer, launch)
    raise ConfigError(
        f"launch={launch.kind} has no scripts: choose launch=ssh, slurm, ray or kubernetes, "
        "with trainer=slime"
    )


def find_architecture(model: ClusterModel) -> Architecture:
    """Return the model's architecture, of the table or as its checkpoint's ``config.json`` says."""
    if isinstance(model, TableModel):
        return model.architecture
    assert isinstance(model, CheckpointModel)
    assert model.path is not None  # by conf.rules.slime
    file = model.config or model.path / "config.json"
    if not file.is_file():
        raise CheckpointConfigError(
            f"model=checkpoint reads the architecture from {file}, which this machine does not "
            "have: copy the checkpoint's config.json here and name it with model.config"
        )
    return read_architecture(file)


@dataclass(frozen=True, slots=True)
class Topology:
    """The use of a job's GPUs. Sizes are numbers of GPUs (ranks), unless they say otherwise."""

    nodes: int
    gpus_per_node: int
    train_gpus: int
    rollout_gpus: int
    colocated: bool
    """True if engines and training take turns on the same GPUs."""
    tensor: int
    pipeline: int
    context: int
    data: int
    """Data parallelism: replicas of the dense layers."""
    expert: int
    expert_tensor: int
    expert_data: int
    """Data parallelism of the experts: their replicas."""
    stage_layers: tuple[int, ...]
    """Number of layers of each pipeline stage."""
    engines: int
    """Number of engines."""
    engine_gpus: int
    """GPUs per engine."""
    engine_data: int
    engine_tensor: int
    """Tensor parallelism of attention within an engine."""
    engine_expert: int
    rollouts: int
    """Rollouts per step."""
    batch: int
    """Rollouts per optimizer update."""


def plan_topology(job: ClusterJob) -> Topology:
    """Return the job's topology; raises ConfigError with every broken rule."""
    broken = broken_rules(job)
    if broken:
        raise ConfigError(broken)
    layout, trainer, launch = job.model.layout, job.trainer, job.launch
    train, rollout = _count_gpus(job)
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
        stage_layers=_stage_layers(job),
        engines=rollout // layout.engine_gpus,
        engine_gpus=layout.engine_gpus,
        engine_data=layout.engine_data,
        engine_tensor=layout.engine_gpus // layout.engine_data,
        engine_expert=layout.engine_expert,
        rollouts=rollouts,
        batch=rollouts // trainer.minibatches,
    )


def broken_rules(job: ClusterJob) -> list[str]:
    """Return a message for every rule that the job breaks: key, value, what is wrong, the fix."""
    return [message for rules in _RULES for broken, message in rules(job) if broken]


Rule = tuple[bool, str]
"""True if the rule is broken; the message for that case."""


def _count_gpus(job: ClusterJob) -> tuple[int, int]:
    """Return the number of GPUs of training and of the engines."""
    per_node, nodes = job.launch.gpus_per_node, job.launch.nodes
    sampling = job.trainer.rollout_nodes
    if not sampling:
        return nodes * per_node, nodes * per_node
    return (nodes - sampling) * per_node, sampling * per_node


def _node_rules(job: ClusterJob) -> Iterator[Rule]:
    nodes, sampling = job.launch.nodes, job.trainer.rollout_nodes
    yield (
        sampling >= nodes,
        f"trainer.rollout_nodes={sampling} leaves none of launch.nodes={nodes} to train: lower it, "
        "or set trainer.rollout_nodes=0 (colocated)",
    )


def _divides(divisor: int, number: int) -> bool:
    return number % divisor == 0


def _training_rules(job: ClusterJob) -> Iterator[Rule]:
    layout, attention = job.model.layout, job.architecture.attention
    train, _ = _count_gpus(job)
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


def _expert_rules(job: ClusterJob) -> Iterator[Rule]:
    layout, experts = job.model.layout, job.architecture.experts
    if experts is None:
        for key in ("expert", "expert_tensor", "engine_expert"):
            size = getattr(layout, key)
            yield (
                size != 1,
                f"model.layout.{key}={size} spreads experts, and the model has none: set it to 1",
            )
        yield (
            layout.dispatcher != "alltoall",
            f"model.layout.dispatcher={layout.dispatcher} sends tokens to experts, and the model "
            "has none: set it to alltoall",
        )
        return
    number = experts.number
    train, _ = _count_gpus(job)
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
        not _divides(layout.expert_tensor, experts.ffn),
        f"model.layout.expert_tensor={layout.expert_tensor} does not divide an expert's "
        f"{experts.ffn}: choose a divisor",
    )
    yield (
        layout.dispatcher == "deepep" and layout.expert * layout.expert_tensor == 1,
        "model.layout.dispatcher=deepep has nothing to send with model.layout.expert=1: choose "
        "alltoall",
    )


def _stage_layers(job: ClusterJob) -> tuple[int, ...]:
    layers, layout = job.architecture.layers, job.model.layout
    if layout.last_stage_layers is None:
        return (layers // layout.pipeline,) * layout.pipeline
    others = layout.pipeline - 1
    return (*(((layers - layout.last_stage_layers) // others,) * others), layout.last_stage_layers)


def _stage_rules(job: ClusterJob) -> Iterator[Rule]:
    layers, layout = job.architecture.layers, job.model.layout
    last, stages = layout.last_stage_layers, layout.pipeline
    if last is None:
        yield (
            not _divides(stages, layers),
            f"model.layout.pipeline={stages} does not divide the model's {layers} layers: choose "
            f"a divisor, or set model.layout.last_stage_layers={_last_stage(layers, stages)}",
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
        f"which {stages - 1} stages cannot share: set it to {_last_stage(layers, stages)}",
    )


def _last_stage(layers: int, stages: int) -> int:
    """Return the number of layers of the last stage if the others share the rest evenly.

    Every other stage has the share of a division rounded up, so the last one has the fewest.
    """
    share = -(-layers // stages) if stages < layers else 1
    return layers - (stages - 1) * share


def _batch_rules(job: ClusterJob) -> Iterator[Rule]:
    run, layout = job.config.run, job.model.layout
    rollouts, updates = run.tasks_per_step * run.rollouts_per_task, job.trainer.minibatches
    train, _ = _count_gpus(job)
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


def _engine_rules(job: ClusterJob) -> Iterator[Rule]:
    layout, model = job.model.layout, job.architecture
    experts = model.experts.number if model.experts else 1
    per_node = job.launch.gpus_per_node
    _, rollout = _count_gpus(job)
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
        model.experts is not None and not (_divides(expert, gpus) and _divides(expert, experts)),
        f"model.layout.engine_expert={expert} must divide model.layout.engine_gpus={gpus} and the "
        f"model's {experts} experts: choose a common divisor",
    )
    tensor = gpus // data
    yield (
        _divides(data, gpus) and not _divides(tensor, model.attention.heads),
        f"model.layout: engine_gpus / engine_data = {tensor} does not divide the model's "
        f"{model.attention.heads} heads: raise engine_data",
    )


_FP8_BLOCK = 128
"""Rows and columns that share a scale in an FP8 checkpoint (slime's ``convert_hf_to_fp8.py``)."""


def _engine_feature_rules(job: ClusterJob) -> Iterator[Rule]:
    drafts, a, layout = job.model.speculative, job.architecture, job.model.layout
    own = drafts.steps > 0 and drafts.path is None
    yield (
        own and not a.draft_layers,
        f"model.speculative.steps={drafts.steps} drafts with layers of multi-token prediction, and "
        "the model has none: set model.speculative.path to a draft model, or steps to 0",
    )
    yield (
        drafts.train_weight > 0 and a.spec is not None,
        f"model.speculative.train_weight={drafts.train_weight:g}, and slime's own layers of "
        f"{a.spec} have no such training: set it to 0",
    )
    if job.model.fp8_path is None:
        return
    shards = layout.engine_gpus // layout.engine_expert
    dense = 1 if layout.engine_data > 1 else layout.engine_gpus
    parts = {"a feed-forward layer": (a.dense_ffn or 0, dense)}
    if a.experts is not None:
        parts = {"an expert": (a.experts.ffn, shards)} | (parts if a.experts.dense_layers else {})
    for name, (size, number) in parts.items():
        yield (
            size % (number * _FP8_BLOCK) != 0,
            f"model.fp8_path: an engine divides {name} of {size} among {number} GPUs, which cuts "
            f"FP8's blocks of {_FP8_BLOCK}: raise model.layout.engine_expert, or lower "
            "model.layout.engine_gpus",
        )


def _path_rules(job: ClusterJob) -> Iterator[Rule]:
    launch, model = job.launch, job.model
    paths = {
        "launch.shared_dir": launch.shared_dir,
        "launch.slime_dir": launch.slime_dir,
        "launch.megatron_dir": launch.megatron_dir,
        "model.path": model.path,
        "model.fp8_path": model.fp8_path,
        "model.speculative.path": model.speculative.path,
        "trainer.weight_sync_dir": job.trainer.weight_sync_dir,
        "model.tokenizer": model.tokenizer,
        **{f"{each.key}.path": each.config.path for each in list_sets(job.config)},
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


_RULES = (
    _node_rules,
    _training_rules,
    _expert_rules,
    _stage_rules,
    _batch_rules,
    _engine_rules,
    _engine_feature_rules,
    _path_rules,
)
