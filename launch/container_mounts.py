"""Find what a job reads and its nodes' containers do not mount."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.sections.kubernetes import KubernetesLaunchConfig, PodConfig
from conf.sections.slurm import SlurmLaunchConfig
from conf.task_sets import list_sets
from launch.cluster_job import ClusterJob


def list_inputs(job: ClusterJob) -> dict[str, Path | str | None]:
    """Return the directories and files that every node reads, by key."""
    model = job.model
    return {
        "model.path": model.path,
        "model.fp8_path": model.fp8_path,
        "model.speculative.path": model.speculative.path,
        "model.tokenizer": model.tokenizer,
        **{f"{each.key}.path": each.config.path for each in list_sets(job.config)},
    }


def find_unmounted(job: ClusterJob) -> Iterator[str]:
    """Yield a warning for each input that lies in no mounted directory: the image, or the
    configuration of the site's containers, may still have it.
    """
    launch = job.config.launch
    if isinstance(launch, SlurmLaunchConfig) and launch.container.runtime is not None:
        key, mounts = "launch.container.mounts", launch.container.mounts
        form = '"{0}:{0}:ro"'
    elif isinstance(launch, KubernetesLaunchConfig):
        key, mounts, form = "launch.pod.mounts", launch.pod.mounts, '"CLAIM:{0}:ro"'
    else:
        return
    inside = [
        Path(launch.shared_dir),
        *(Path(each.split(":")[min(1, each.count(":"))]) for each in mounts),
    ]
    if isinstance(launch, KubernetesLaunchConfig):
        inside += _find_volume_mounts(launch.pod)
    names: dict[str, str] = {}  # by path; the first: model.tokenizer is model.path by default
    for name, value in list_inputs(job).items():
        if value is not None:
            names.setdefault(str(value), name)
    for path, name in names.items():
        if not any(Path(path).is_relative_to(each) for each in inside):
            folder = form.format(Path(path).parent)
            yield (
                f"{name}={path} is in no directory that the containers mount ({key}): unless the "
                f"image has it, add '{key}=[{folder}]'"
            )


def _find_volume_mounts(pod: PodConfig) -> list[Path]:
    """Return where the overlay mounts volumes into the job's container."""
    overlay: Any = pod.overlay
    containers = (overlay.get("spec") or {}).get("containers") or ()
    return [
        Path(mount["mountPath"])
        for container in containers
        if container.get("name") == "ray"
        for mount in container.get("volumeMounts") or ()
    ]
