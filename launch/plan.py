"""What a job on a cluster will be, before a script is written: all of it is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conf.errors import ConfigError
from conf.schema import Config
from launch import flags
from launch.architecture import Arguments, total_parameters
from launch.environment import environment, secrets
from launch.memory import MemoryPlan, memory
from launch.slime_arguments import conversion_arguments, converted, job_dir, slime_arguments
from launch.topology import ClusterJob, Topology, cluster_job, topology


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job that keeps every rule."""

    job: ClusterJob
    topology: Topology
    memory: MemoryPlan
    arguments: Arguments
    """slime's."""
    conversion: Arguments
    """Of the checkpoint's conversion."""
    environment: dict[str, str]
    secrets: tuple[str, ...]

    @property
    def step_tokens(self) -> int:
        """Tokens of a step at most, if every rollout is one full context."""
        return self.topology.rollouts * self.job.model.max_context_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        architecture = self.job.model.architecture
        return {
            "name": self.job.launch.name,
            "launch": self.job.config.launch.kind,
            "model": {
                "kind": self.job.model.kind,
                "parameters": total_parameters(architecture),
                "checkpoint": str(self.job.model.path),
                "converted": str(converted(self.job)),
            },
            "job_dir": str(job_dir(self.job)),
            "topology": self.topology.to_dict(),
            "memory": self.memory.to_dict(),
            "step_tokens_at_most": self.step_tokens,
            "environment": self.environment,
            "secrets": list(self.secrets),
            "arguments": flags.words(self.arguments),
        }


def plan_job(config: Config) -> JobPlan:
    """Return the plan of the job that ``config`` is.

    Raises ConfigError with every rule that is broken, every flag that slime does not take, and,
    unless ``launch.ignore_memory``, what does not fit into the GPUs.
    """
    job = cluster_job(config)
    found = topology(job)
    room = memory(job, found)
    faults = [] if job.launch.ignore_memory else list(room.faults)
    arguments: Arguments = {}
    variables: dict[str, str] = {}
    try:
        arguments = slime_arguments(job, found)
    except ConfigError as error:
        faults += error.faults
    try:
        variables = environment(job)
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError(faults)
    conversion = conversion_arguments(job)
    return JobPlan(job, found, room, arguments, conversion, variables, secrets(job))
