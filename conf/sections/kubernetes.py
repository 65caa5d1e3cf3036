"""The launcher of a Kubernetes cluster with the KubeRay operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.section import Section, expecting


def _to_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_to_text),
    Field(pattern=r"^\d+(\.\d+)?(m|k|[KMGTPE]i?)?$"),
    expecting("a quantity of Kubernetes such as 96 or 1200Gi"),
]
LabelValue = Annotated[
    str,
    Field(pattern=r"^([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?$"),
    expecting("the value of a label, quoted if it is a number"),
]
ObjectName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"),
    expecting("the name of a Kubernetes object"),
]
Toleration = Annotated[
    str,
    Field(pattern=r"^[\w./-]+(=[\w.-]*)?(:(NoSchedule|PreferNoSchedule|NoExecute))?$"),
    expecting("KEY[=VALUE][:EFFECT], with NoSchedule, PreferNoSchedule or NoExecute as effect"),
]
Mount = Annotated[
    str,
    Field(pattern=r"^(/[^:\s]*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?):/[^:\s]*(:(ro|rw))?$"),
    expecting("SOURCE:PATH[:ro], with a directory of the node or the name of a claim as SOURCE"),
]
Capability = Annotated[
    str, Field(pattern=r"^[A-Z_]+$"), expecting("a Linux capability such as IPC_LOCK")
]


class PodConfig(Section):
    """Requests of each pod, which is a node of the job."""

    resources: Mapping[str, Quantity] = Field(default_factory=dict)
    """``cpu``, ``memory`` and ``ephemeral-storage`` are requested; a name with a domain is a device
    and a limit: ``'launch.pod.resources={cpu:96,memory:1200Gi,rdma/rdma_shared_device_a:1}'``. GPUs
    are ``launch.gpus_per_node``.
    """
    node_selector: Mapping[str, LabelValue] = Field(default_factory=dict)
    """Labels that a node must have, ``'launch.pod.node_selector={gpu.example/type:h100}'``."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that a pod tolerates, KEY[=VALUE][:EFFECT],
    ``'launch.pod.tolerations=["nvidia.com/gpu:NoSchedule"]'``.
    """
    image_pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets with which the image is pulled."""
    host_network: bool = False
    """The node's own network."""
    host_ipc: bool = False
    """The node's own shared memory segments."""
    capabilities: tuple[Capability, ...] = ()
    """Linux capabilities that are added, e.g. [IPC_LOCK], with which RDMA pins memory."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm; null: half of the node's memory, and no more than the pod's limit."""
    mounts: tuple[Mount, ...] = ()
    """More volumes, ``SOURCE:PATH[:ro]``: a directory of the node, or the name of a claim."""
    overlay: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Pod template that is merged over the job's: {metadata: …, spec: …}. Containers are merged by
    name, and the job's is called ``ray``; what the job sets itself is refused by name.
    """

    def __hash__(self) -> int:
        """Hash of all values; mappings have none of their own."""
        return hash(self.model_dump_json())


class KubernetesLaunchConfig(ClusterLaunchConfig):
    """A RayJob for the KubeRay operator."""

    kind: Literal["kubernetes"]
    image: str
    """Container image with slime, Megatron, SGLang, Ray and agentrl."""
    namespace: str = "default"
    """Kubernetes namespace of the job."""
    secret: str = "agentrl"
    """Kubernetes Secret whose keys are the names of the secret variables."""
    claim: str
    """PersistentVolumeClaim that is mounted at ``shared_dir``."""
    pod: PodConfig
