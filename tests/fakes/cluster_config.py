"""Configurations of jobs on a cluster."""

from __future__ import annotations

from functools import cache
from typing import get_args

from conf.compose import compose
from conf.schema import Config
from conf.sections.cluster_model import TableModel

MODELS: tuple[str, ...] = get_args(TableModel.model_fields["kind"].annotation)
LAUNCHERS = {
    "ssh": ["launch.hosts_file=/shared/hosts"],
    "slurm": [],
    "ray": ["launch.head=10.0.0.1"],
    "kubernetes": ["launch.image=registry.example/agentrl:1", "launch.claim=shared"],
}
SCENARIOS = ("linear", "subagent", "compact", "mixed")


@cache
def a_config(*overrides: str, model: str = "qwen3_30b_a3b", launch: str = "slurm") -> Config:
    """Compose a job on eight nodes of eight GPUs."""
    return compose(
        [
            *(f"model={model}", "model.path=/shared/weights", "trainer=slime"),
            *(f"launch={launch}", "launch.shared_dir=/shared", *LAUNCHERS[launch]),
            *("task=jsonl", "task.path=/shared/tasks.jsonl", *overrides),
        ]
    )
