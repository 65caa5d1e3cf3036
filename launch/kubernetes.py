"""Render the manifest of a RayJob for the KubeRay operator (ray.io/v1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.sections.kubernetes import KubernetesLaunchConfig
from launch.plan import JobPlan
from launch.pod import MOUNTED, render_pod


def render_rayjob(
    plan: JobPlan, launch: KubernetesLaunchConfig, files: Mapping[str, str]
) -> dict[str, Any]:
    """Return a list of two resources: the RayJob, and the ConfigMap with its ``files``.

    Secrets are references to ``launch.secret``. The head is a node with GPUs like the others.
    """
    labels = {"app.kubernetes.io/name": launch.name, "app.kubernetes.io/managed-by": "agentrl"}
    place = {"name": launch.name, "namespace": launch.namespace, "labels": labels}
    ports = {"ray": launch.ray_port, "dashboard": launch.dashboard_port}
    head = {
        "rayStartParams": {
            "dashboard-host": "0.0.0.0",
            "num-gpus": str(launch.gpus_per_node),
        },
        "template": render_pod(launch, plan.environment, plan.secrets, ports),
    }
    workers = {
        "groupName": "workers",
        "replicas": launch.nodes - 1,
        "minReplicas": launch.nodes - 1,
        "maxReplicas": launch.nodes - 1,
        "rayStartParams": {"num-gpus": str(launch.gpus_per_node)},
        "template": render_pod(launch, plan.environment, plan.secrets, {}),
    }
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": place,
        "spec": {
            "entrypoint": f"bash {MOUNTED}/entry.sh",
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 0,
            "rayClusterSpec": {
                "headGroupSpec": head,
                "workerGroupSpecs": [workers] if launch.nodes > 1 else [],
            },
        },
    }
    configuration = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": place,
        "data": dict(files),
    }
    return {"apiVersion": "v1", "kind": "List", "items": [configuration, job]}
