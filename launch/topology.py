"""Divide a job's GPUs into training ranks and engines.

Invariant: a ``Topology`` that is returned keeps every rule (``topology_rules.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from conf.errors import ConfigError
from launch.cluster_job import ClusterJob, count_gpus
from launch.topology_rules import find_broken_rules


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
    broken = find_broken_rules(job)
    if broken:
        raise ConfigError(broken)
    layout, trainer, launch = job.model.layout, job.trainer, job.launch
    train, rollout = count_gpus(job)
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
        stage_layers=_share_layers(job),
        engines=rollout // layout.engine_gpus,
        engine_gpus=layout.engine_gpus,
        engine_data=layout.engine_data,
        engine_tensor=layout.engine_gpus // layout.engine_data,
        engine_expert=layout.engine_expert,
        rollouts=rollouts,
        batch=rollouts // trainer.minibatches,
    )


def _share_layers(job: ClusterJob) -> tuple[int, ...]:
    """Return the number of layers of each pipeline stage."""
    layers, layout = job.architecture.layers, job.model.layout
    if layout.last_stage_layers is None:
        return (layers // layout.pipeline,) * layout.pipeline
    others = layout.pipeline - 1
    return (*(((layers - layout.last_stage_layers) // others,) * others), layout.last_stage_layers)
