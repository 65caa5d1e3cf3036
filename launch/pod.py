"""Render the template of a job's pods, and merge the user's own over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conf.errors import ConfigError
from conf.sections.kubernetes import KubernetesLaunchConfig, PodConfig
from launch.environment import SECRET_SUFFIXES

MOUNTED = "/agentrl"
"""Directory of the job's files in every container."""
CONTAINER = "ray"
"""Name of the container in which Ray runs; KubeRay takes the first one."""
_GPU = "nvidia.com/gpu"
_OVERLAY = "launch.pod.overlay"
_OWN_KEYS = {
    "metadata.name": "launch.name",
    "metadata.namespace": "launch.namespace",
    "spec.hostIPC": "launch.pod.host_ipc",
    "spec.hostNetwork": "launch.pod.host_network",
    "spec.imagePullSecrets": "launch.pod.image_pull_secrets",
    "spec.nodeSelector": "launch.pod.node_selector",
    "spec.tolerations": "launch.pod.tolerations",
    f"spec.containers[{CONTAINER}].image": "launch.image",
}
"""Places that an overlay does not set, since a key does."""
_KUBERAY = ("command", "args", "lifecycle")
"""Fields of Ray's container that KubeRay writes."""


def render_pod(
    launch: KubernetesLaunchConfig,
    environment: Mapping[str, str],
    secrets: tuple[str, ...],
    ports: Mapping[str, int],
) -> dict[str, Any]:
    """Return the pod template with the overlay; secrets are references to ``launch.secret``.

    Raises ConfigError with every place where the overlay sets what the job sets.
    """
    template = {
        "metadata": {},
        "spec": {
            "containers": [_render_container(launch, environment, secrets, ports)],
            "volumes": list(_list_volumes(launch)),
            **_render_placement(launch.pod),
        },
    }
    faults: list[str] = []
    whole = _merge(template, launch.pod.overlay, "", faults)
    if faults:
        raise ConfigError(faults)
    return {name: value for name, value in whole.items() if value}


def _render_container(
    launch: KubernetesLaunchConfig,
    environment: Mapping[str, str],
    secrets: tuple[str, ...],
    ports: Mapping[str, int],
) -> dict[str, Any]:
    pod = launch.pod
    variables: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in environment.items()
    ]
    variables += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": launch.secret, "key": name}}}
        for name in secrets
    ]
    devices = {name: size for name, size in pod.resources.items() if "/" in name}
    requests = {name: size for name, size in pod.resources.items() if "/" not in name}
    mounts: list[dict[str, Any]] = [
        {"name": "shared", "mountPath": str(launch.shared_dir)},
        {"name": "job", "mountPath": MOUNTED, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    for number, mount in enumerate(pod.mounts):
        _, path, *mode = mount.split(":")
        read_only = {"readOnly": True} if mode == ["ro"] else {}
        mounts.append({"name": f"mount-{number}", "mountPath": path, **read_only})
    return {
        "name": CONTAINER,
        "image": launch.image,
        "env": variables,
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "resources": {
            **({"requests": requests} if requests else {}),
            "limits": {_GPU: launch.gpus_per_node, **devices},
        },
        **(
            {"securityContext": {"capabilities": {"add": list(pod.capabilities)}}}
            if pod.capabilities
            else {}
        ),
        "volumeMounts": mounts,
    }


def _list_volumes(launch: KubernetesLaunchConfig) -> Iterator[dict[str, Any]]:
    size = launch.pod.shared_memory
    yield {"name": "shared", "persistentVolumeClaim": {"claimName": launch.claim}}
    yield {"name": "job", "configMap": {"name": launch.name}}
    yield {"name": "shm", "emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}}
    for number, mount in enumerate(launch.pod.mounts):
        source = mount.split(":")[0]
        path, claim = (
            {"hostPath": {"path": source}},
            {"persistentVolumeClaim": {"claimName": source}},
        )
        yield {"name": f"mount-{number}", **(path if source.startswith("/") else claim)}


def _render_placement(pod: PodConfig) -> dict[str, Any]:
    found: dict[str, Any] = {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [_parse_toleration(text) for text in pod.tolerations],
        "imagePullSecrets": [{"name": name} for name in pod.image_pull_secrets],
        "hostNetwork": pod.host_network,
        # Workers find the head by its service, which the node's own resolver does not know.
        "dnsPolicy": "ClusterFirstWithHostNet" if pod.host_network else None,
        "hostIPC": pod.host_ipc,
    }
    return {name: value for name, value in found.items() if value}


def _parse_toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, given, value = taint.partition("=")
    how = {"operator": "Equal", "value": value} if given else {"operator": "Exists"}
    return {"key": key, **how, **({"effect": effect} if effect else {})}


def _merge(base: Any, over: Any, path: str, faults: list[str]) -> Any:
    """Return ``over`` merged over ``base``: mappings by key, lists of named items by name."""
    where = path.lstrip(".")
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = dict(base)
        for name, value in over.items():
            key = f"{path}.{name}"
            if fault := _refuse(key.lstrip(".")):
                faults.append(fault)
            elif name in base:
                merged[name] = _merge(base[name], value, key, faults)
            else:
                merged[name] = value
        return merged
    if isinstance(base, list) and isinstance(over, list):
        return _merge_lists(base, over, path, faults)
    faults.append(f"{_OVERLAY} sets {where}, which the job sets itself: leave it out")
    return base


def _merge_lists(base: list[Any], over: list[Any], path: str, faults: list[str]) -> list[Any]:
    """Return both lists' items; an item that the job has already is a fault, or merged if it is a
    container.
    """
    where = path.lstrip(".")
    field = "mountPath" if where.endswith("volumeMounts") else "name"
    items = {item[field]: item for item in base}
    for item in over:
        name = item.get(field) if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            faults.append(f"{_OVERLAY} sets an item of {where} without a {field}: give it one")
        elif name not in items:
            items[name] = item
        elif where == "spec.containers":
            more = {key: value for key, value in item.items() if key != field}
            items[name] = _merge(items[name], more, f"{path}[{name}]", faults)
        else:
            faults.append(
                f"{_OVERLAY} sets {where}[{name}], which the job sets itself: leave it out"
            )
        if where.endswith(".env") and "value" in item and str(name).endswith(SECRET_SUFFIXES):
            faults.append(
                f"{_OVERLAY} sets {name}, a secret: put it into the Secret of launch.secret, and "
                "its name into launch.secrets"
            )
    return list(items.values())


def _refuse(where: str) -> str | None:
    """Return the fault of a place that no overlay may set."""
    if (key := _OWN_KEYS.get(where)) is not None:
        return f"{_OVERLAY} sets {where}: set {key} instead"
    if where in (f"spec.containers[{CONTAINER}].{name}" for name in _KUBERAY):
        return f"{_OVERLAY} sets {where}, which KubeRay sets itself: leave it out"
    if "." not in where and where not in ("metadata", "spec"):
        return f"{_OVERLAY} sets {where}, and a pod template has metadata and spec only"
    return None
