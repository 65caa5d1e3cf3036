"""Configurations of jobs on a cluster."""

from __future__ import annotations

from functools import cache
from pathlib import Path
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


def job_lines(shared: Path | str, launch: str, *own: str) -> list[str]:
    """Return the lines of a job whose checkpoint and tasks lie in a directory that all nodes share;
    ``own``: what its launcher needs, by default ``LAUNCHERS``'.
    """
    return [
        *("trainer=slime", f"launch={launch}", f"launch.shared_dir={shared}"),
        *("model=qwen3_30b_a3b", f"model.path={shared}/weights"),
        *("task=jsonl", f"task.path={shared}/tasks.jsonl", *(own or LAUNCHERS[launch])),
    ]


@cache
def a_config(*overrides: str, model: str = "qwen3_30b_a3b", launch: str = "slurm") -> Config:
    """Compose a job on eight nodes of eight GPUs."""
    return compose(
        [
            *(line for line in job_lines("/shared", launch) if not line.startswith("model=")),
            *(f"model={model}", *overrides),
        ]
    )
