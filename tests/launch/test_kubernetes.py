"""What Kubernetes is asked for: the manifest of a RayJob, checked with KubeRay's schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.compose import from_json, to_json
from conf.errors import ConfigError
from launch.job_files import render_files
from launch.plan import plan_job
from tests.fakes.cluster_config import a_config

SCHEMA = Path(__file__).parents[1] / "fakes" / "recorded" / "kubernetes" / "rayjob_schema.json"
EVERYTHING = (
    "launch.pod.resources={cpu:96,memory:1200Gi,ephemeral-storage:500Gi,rdma/shared_a:1}",
    "launch.pod.node_selector={gpu.example/type:h100}",
    "launch.pod.tolerations=['nvidia.com/gpu=present:NoSchedule','spot']",
    "launch.pod.image_pull_secrets=[registry]",
    "launch.pod.host_network=true",
    "launch.pod.host_ipc=true",
    "launch.pod.capabilities=[IPC_LOCK]",
    "launch.pod.shared_memory=256Gi",
    "launch.pod.mounts=['/mnt/nvme:/scratch','models:/models:ro']",
    "launch.pod.overlay={metadata:{annotations:{k8s.v1.cni.cncf.io/networks:ib0}},spec:"
    "{priorityClassName:high,containers:[{name:ray,resources:{limits:{memory:1300Gi}},env:"
    "[{name:NODE,valueFrom:{fieldRef:{fieldPath:spec.nodeName}}}]},{name:log,image:log}]}}",
)


def manifest(*overrides: str) -> dict[str, Any]:
    plan = plan_job(a_config(*overrides, launch="kubernetes"))
    found: dict[str, Any] = json.loads(render_files(plan, command=["agentrl"])["rayjob.json"])
    return found


def pods(*overrides: str) -> list[dict[str, Any]]:
    """Return the templates of the head's pod and the workers'."""
    cluster = manifest(*overrides)["items"][1]["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]]


def faults(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        manifest(*overrides)
    return "\n".join(caught.value.faults)


@pytest.mark.parametrize("overrides", [(), EVERYTHING])
def test_the_manifest_keeps_kuberay_s_schema(overrides: tuple[str, ...]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    found = [
        f"{error.json_path}: {error.message}"
        for error in validator.iter_errors(manifest(*overrides)["items"][1])
    ]
    assert found == []


def test_the_schema_refuses_what_kubernetes_does_not_know() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    wrong = manifest("launch.pod.overlay={spec:{priorityClass:high}}")["items"][1]
    assert any("priorityClass" in error.message for error in validator.iter_errors(wrong))


def test_every_request_is_in_both_pods() -> None:
    for pod in pods(*EVERYTHING):
        assert pod["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "ib0"}
        spec = pod["spec"]
        ray, log = spec["containers"]
        assert (ray["name"], log) == ("ray", {"name": "log", "image": "log"})
        assert ray["resources"] == {
            "requests": {"cpu": "96", "memory": "1200Gi", "ephemeral-storage": "500Gi"},
            "limits": {"nvidia.com/gpu": 8, "rdma/shared_a": "1", "memory": "1300Gi"},
        }
        assert ray["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert ray["env"][-1]["name"] == "NODE"
        assert spec["nodeSelector"] == {"gpu.example/type": "h100"}
        assert spec["tolerations"] == [
            {
                "key": "nvidia.com/gpu",
                "operator": "Equal",
                "value": "present",
                "effect": "NoSchedule",
            },
            {"key": "spot", "operator": "Exists"},
        ]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert (spec["hostNetwork"], spec["hostIPC"]) == (True, True)
        assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert spec["priorityClassName"] == "high"
        volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
        assert volumes["shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "256Gi"}}
        assert volumes["mount-0"] == {"hostPath": {"path": "/mnt/nvme"}}
        assert volumes["mount-1"] == {"persistentVolumeClaim": {"claimName": "models"}}
        assert ray["volumeMounts"][-2:] == [
            {"name": "mount-0", "mountPath": "/scratch"},
            {"name": "mount-1", "mountPath": "/models", "readOnly": True},
        ]


def test_a_pod_that_asks_for_nothing_has_only_what_the_job_needs() -> None:
    for pod in pods():
        assert set(pod) == {"spec"}
        assert set(pod["spec"]) == {"containers", "volumes"}
        (ray,) = pod["spec"]["containers"]
        assert ray["resources"] == {"limits": {"nvidia.com/gpu": 8}}


def test_the_requests_of_a_stored_job_are_read_again() -> None:
    config = a_config(*EVERYTHING, launch="kubernetes")
    assert from_json(to_json(config), source="a file") == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("launch.pod.resources={nvidia.com/gpu:8}", "set launch.gpus_per_node instead"),
        ("launch.pod.resources={gpu:8}", "has gpu: name cpu, memory, ephemeral-storage, or a dev"),
        (
            "launch.pod.resources={memory:1200GB}",
            "launch.pod.resources.memory=1200GB must be",
        ),
        ("launch.pod.tolerations=['a:Never']", "launch.pod.tolerations[0]=a:Never"),
        ("launch.pod.mounts=['/a']", "launch.pod.mounts[0]=/a must be SOURCE:PATH[:ro]"),
        ("launch.pod.mounts=['a:/x','b:/x']", "launch.pod.mounts has /x, where a volume is"),
        ("launch.pod.mounts=['a:/dev/shm']", "launch.pod.mounts has /dev/shm, where a volume is"),
        ("launch.pod.capabilities=[ipc_lock]", "launch.pod.capabilities[0]=ipc_lock"),
        ("launch.pod.overlay={kind:Pod}", "sets kind, and a pod template has metadata and spec"),
        ("launch.pod.overlay={spec:{hostNetwork:true}}", "set launch.pod.host_network instead"),
        ("launch.pod.overlay={metadata:{name:x}}", "sets metadata.name: set launch.name instead"),
        (
            "launch.pod.overlay={spec:{volumes:[{name:shm,emptyDir:{}}]}}",
            "sets spec.volumes[shm], which the job sets itself: leave it out",
        ),
        (
            "launch.pod.overlay={spec:{containers:[{name:ray,image:x}]}}",
            "sets spec.containers[ray].image: set launch.image instead",
        ),
        (
            "launch.pod.overlay={spec:{containers:[{name:ray,command:[x]}]}}",
            "sets spec.containers[ray].command, which KubeRay sets itself",
        ),
        (
            "launch.pod.overlay={spec:{containers:[{name:ray,resources:{limits:"
            "{nvidia.com/gpu:4}}}]}}",
            "sets spec.containers[ray].resources.limits.nvidia.com/gpu, which the job sets itself",
        ),
        (
            "launch.pod.overlay={spec:{containers:[{name:ray,env:[{name:PYTHONPATH,value:x}]}]}}",
            "sets spec.containers[ray].env[PYTHONPATH], which the job sets itself",
        ),
        (
            "launch.pod.overlay={spec:{containers:[{name:ray,env:[{name:HF_TOKEN,value:x}]}]}}",
            "sets HF_TOKEN, a secret: put it into the Secret of launch.secret",
        ),
        (
            "launch.pod.overlay={spec:{containers:[{name:ray,volumeMounts:[{name:shm,"
            "mountPath:/dev/shm}]}]}}",
            "sets spec.containers[ray].volumeMounts[/dev/shm], which the job sets itself",
        ),
        ("launch.pod.overlay={spec:{containers:[{image:x}]}}", "without a name: give it one"),
        ("launch.pod.overlay={spec:{containers:x}}", "sets spec.containers, which the job sets"),
    ],
)
def test_a_request_that_cannot_work_is_refused_with_its_fix(override: str, message: str) -> None:
    assert message in faults(override)
