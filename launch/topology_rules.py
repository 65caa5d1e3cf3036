"""The rules of a job's nodes, GPUs, model and batch.

A job that breaks rules is refused with all of them, each with its key and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator

from conf.sections.architecture import LatentAttention
from conf.sections.cluster import SshLaunchConfig
from launch.cluster_job import ClusterJob, count_gpus
from launch.container_mounts import list_inputs


def find_broken_rules(job: ClusterJob) -> list[str]:
    """Return a message for every rule that the job breaks: key, value, what is wrong, the fix."""
    return [message for rules in _RULES for broken, message in rules(job) if broken]


Rule = tuple[bool, str]
"""True if the rule is broken; the message for that case."""


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
    train, _ = count_gpus(job)
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
    train, _ = count_gpus(job)
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
    train, _ = count_gpus(job)
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
    _, rollout = count_gpus(job)
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
    launch = job.launch
    paths = {
        "launch.shared_dir": launch.shared_dir,
        "launch.slime_dir": launch.slime_dir,
        "launch.megatron_dir": launch.megatron_dir,
        "trainer.weight_sync_dir": job.trainer.weight_sync_dir,
        **list_inputs(job),
    }
    for key, path in paths.items():
        yield (
            path is not None and not str(path).startswith("/"),
            f"{key}={path} is relative, and every node must find it: give the absolute path",
        )
    if isinstance(launch, SshLaunchConfig):
        yield (
            not launch.hosts_file.is_absolute(),
            f"launch.hosts_file={launch.hosts_file} is relative, and ssh.sh may start "
            "in any directory: give the absolute path on the first host",
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
