"""Render the manifest of a RayJob for the KubeRay operator (ray.io/v1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.sections.cluster import KubernetesLaunchConfig
from launch.plan import JobPlan

_MOUNTED = "/agentrl"
"""Directory of the job's files in every container."""


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
        "template": _render_pod(plan, launch, "ray-head", ports),
    }
    workers = {
        "groupName": "workers",
        "replicas": launch.nodes - 1,
        "minReplicas": launch.nodes - 1,
        "maxReplicas": launch.nodes - 1,
        "rayStartParams": {"num-gpus": str(launch.gpus_per_node)},
        "template": _render_pod(plan, launch, "ray-worker", {}),
    }
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": place,
        "spec": {
            "entrypoint": f"bash {_MOUNTED}/entry.sh",
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


def _render_pod(
    plan: JobPlan, launch: KubernetesLaunchConfig, name: str, ports: Mapping[str, int]
) -> dict[str, Any]:
    variables: list[dict[str, Any]] = [
        {"name": key, "value": value} for key, value in plan.environment.items()
    ]
    variables += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": launch.secret, "key": key}}}
        for key in plan.secrets
    ]
    container = {
        "name": name,
        "image": launch.image,
        "env": variables,
        "ports": [{"name": port, "containerPort": number} for port, number in ports.items()],
        "resources": {"limits": {"nvidia.com/gpu": launch.gpus_per_node}},
        "volumeMounts": [
            {"name": "shared", "mountPath": str(launch.shared_dir)},
            {"name": "job", "mountPath": _MOUNTED, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": launch.claim}},
        {"name": "job", "configMap": {"name": launch.name}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    return {"spec": {"containers": [container], "volumes": volumes}}
