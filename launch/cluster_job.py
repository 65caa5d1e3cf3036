"""A configuration as a job on a cluster: its sections in the types that only clusters have."""

from __future__ import annotations

from dataclasses import dataclass

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.architecture import Architecture
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.cluster_model import CheckpointModel, ClusterModel, TableModel
from conf.sections.training import SlimeTrainerConfig
from launch.checkpoint_config import CheckpointConfigError, read_architecture


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A configuration for a cluster, with its sections in the types that only clusters have."""

    config: Config
    model: ClusterModel
    architecture: Architecture
    trainer: SlimeTrainerConfig
    launch: ClusterLaunchConfig


def make_cluster_job(config: Config) -> ClusterJob:
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


def count_gpus(job: ClusterJob) -> tuple[int, int]:
    """Return the number of GPUs of training and of the engines."""
    per_node, nodes = job.launch.gpus_per_node, job.launch.nodes
    sampling = job.trainer.rollout_nodes
    if not sampling:
        return nodes * per_node, nodes * per_node
    return (nodes - sampling) * per_node, sampling * per_node
