"""Plan a job on a cluster and check everything about it, before any script is written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from conf.errors import ConfigError
from conf.plan_numbers import find_key_numbers
from conf.schema import Config
from conf.sections.kubernetes import KubernetesLaunchConfig
from launch import flags
from launch.cluster_job import ClusterJob, make_cluster_job
from launch.environment import job_environment, secret_names
from launch.megatron_arguments import Arguments
from launch.memory import MemoryPlan, estimate_memory
from launch.parameters import total_parameters
from launch.pod import render_pod
from launch.slime_arguments import (
    build_conversion_arguments,
    build_slime_arguments,
    converted_checkpoint,
    job_dir,
)
from launch.topology import Topology, plan_topology


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job on a cluster; every instance keeps all rules."""

    job: ClusterJob
    topology: Topology
    memory: MemoryPlan
    arguments: Arguments
    """Command line of slime."""
    conversion: Arguments
    """Command line of the checkpoint's conversion to Megatron's format."""
    environment: dict[str, str]
    secrets: tuple[str, ...]

    @property
    def step_tokens(self) -> int:
        """Upper bound of the tokens of a step: every rollout fills its context."""
        return self.topology.rollouts * self.job.model.max_context_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        architecture = self.job.architecture
        return {
            "name": self.job.launch.name,
            "launch": self.job.config.launch.kind,
            "model": {
                "kind": self.job.model.kind,
                "parameters": total_parameters(architecture),
                "checkpoint": str(self.job.model.path),
                "converted": str(converted_checkpoint(self.job)),
            },
            "job_dir": str(job_dir(self.job)),
            "numbers": asdict(find_key_numbers(self.job.config)),
            "topology": asdict(self.topology),
            "memory": self.memory.to_dict(),
            "step_tokens_at_most": self.step_tokens,
            "environment": self.environment,
            "secrets": list(self.secrets),
            "arguments": flags.to_words(self.arguments),
        }


def plan_job(config: Config) -> JobPlan:
    """Return the plan of the job that ``config`` describes.

    Raises ConfigError with every broken rule, every flag that slime does not know, and, unless
    ``launch.ignore_memory`` is set, everything that does not fit into the GPUs.
    """
    job = make_cluster_job(config)
    topology = plan_topology(job)
    memory = estimate_memory(job, topology)
    faults = [] if job.launch.ignore_memory else list(memory.faults)
    arguments: Arguments = {}
    variables: dict[str, str] = {}
    try:
        arguments = build_slime_arguments(job, topology)
    except ConfigError as error:
        faults += error.faults
    try:
        variables = job_environment(job)
    except ConfigError as error:
        faults += error.faults
    if isinstance(config.launch, KubernetesLaunchConfig):
        try:
            render_pod(config.launch, variables, secret_names(job), {})
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    conversion = build_conversion_arguments(job)
    return JobPlan(job, topology, memory, arguments, conversion, variables, secret_names(job))
