"""Estimate the GPU memory of a job's fullest rank, in training and in sampling.

Assumptions, with their sources:

* Parameters are bfloat16 (2 bytes), their gradients float32 (4: Megatron's
  ``--accumulate-allreduce-grads-in-fp32``). Dense ones are sharded over TP and PP, experts over EP,
  ETP and PP.
* Adam keeps a float32 copy and two moments (12 bytes) and shards them over the replicas
  (``--use-distributed-optimizer``, ZeRO-1, arXiv 1910.02054); with ``trainer.optimizer_offload``
  they lie in the node's main memory. There lie the last weights sent, for
  ``trainer.weight_sync=delta`` (of a stage on the node of its first rank), and the reference policy
  of ``trainer.kl``, too; it takes the policy's place on the GPU while its logprobs are computed.
* With full recompute a layer keeps its bfloat16 input, sharded over TP (sequence parallelism,
  arXiv 2205.05198); the first of PP stages holds PP microbatches. One layer at a time is computed
  again: attention's projections, and top-k copies of each token through its expert, forward and
  backward. Selective recompute keeps 34 bytes per token and hidden unit instead of 2 (the same
  paper, without the attention matrix).
* Experts are unevenly loaded: the fullest rank gets ``EXPERT_IMBALANCE`` of an even share.
* The last stage holds logits as bfloat16 and float32, their softmax for the backward pass, and the
  gradients of both: 16 bytes per token and vocabulary row, sharded over TP; what else the
  log-softmax needs, it needs for ``trainer.logits_chunk`` tokens.
* CUDA, NCCL and DeepEP keep ``OVERHEAD_GIB``. A colocated engine keeps ``SLEEPING_GIB`` while it
  sleeps (context and CUDA graphs; its weights and cache are released).
* The allocator wastes the share ``FRAGMENTATION`` of all temporary memory. The figure is fitted to
  one known case: of Qwen3.6-35B-A3B on 80 GB cards (TP 2, CP 8, EP 8) a sample of 100k tokens
  fitted, one of 152k did not.
* An engine takes ``model.layout.engine_memory`` of the GPU, its weights in bfloat16 (with
  ``model.fp8_path`` one byte each, but for embeddings), with its own layers that draft: attention
  over its attention shards, experts over the engine's GPUs, the vocabulary over the former.
  The rest of that share is KV cache; the states of linear layers, a constant per request, are
  neglected.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from conf.sections.architecture import HybridAttention, LatentAttention
from conf.sections.kubernetes import KubernetesLaunchConfig
from conf.sections.launch import LaunchConfig
from conf.sections.slurm import SlurmLaunchConfig
from launch.cluster_job import ClusterJob
from launch.parameters import Parameters, count_parameters, total_parameters
from launch.topology import Topology

GIB = float(1 << 30)
_UNITS = {
    **{"": 1.0, "m": 1e-3, "k": 1e3},
    **{unit: 1e3**power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)},
}
"""Bytes by the suffix of a quantity of Kubernetes."""
EXPERT_IMBALANCE = 2.0
OVERHEAD_GIB = 5.0
SLEEPING_GIB = 3.0
FRAGMENTATION = 0.15
_MASTER_BYTES = 12
_LOGITS_BYTES = 16
_LARGEST = 1 << 24
"""Upper bound of the search for the longest sample, in tokens."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Memory of one phase on its fullest rank, in GiB."""

    parts: tuple[tuple[str, float], ...]
    available: float

    @property
    def total(self) -> float:
        """Sum of the parts, GiB."""
        return sum(size for _, size in self.parts)

    @property
    def fits(self) -> bool:
        """True if the GPU has enough memory for the parts."""
        return self.total <= self.available


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Estimated memory of a job."""

    training: Phase
    sampling: Phase
    segment_tokens: int
    """Longest sample that fits in training, in tokens."""
    cache_tokens: int
    """Capacity of an engine's KV cache in tokens."""
    host_gib: float
    """Optimizer state and reference policy in the main memory of one node, GiB."""
    faults: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self) | {
            "training": _phase_dict(self.training),
            "sampling": _phase_dict(self.sampling),
        }


def _phase_dict(phase: Phase) -> dict[str, Any]:
    parts = {name: round(size, 2) for name, size in phase.parts}
    return {
        "gib": parts,
        "total_gib": round(phase.total, 2),
        "available_gib": phase.available,
        "fits": phase.fits,
    }


def estimate_memory(job: ClusterJob, topology: Topology) -> MemoryPlan:
    """Return the job's memory, with a fault for every part that does not fit."""
    layout, launch = job.model.layout, job.launch
    training = estimate_training(job, topology, layout.tokens_per_gpu)
    sampling, cache = _estimate_sampling(job, topology)
    host = _optimizer_bytes(job, topology) if job.trainer.optimizer_offload else 0.0
    if job.trainer.kl.weight:
        host += 2 * sum(_fullest(job, topology))
    host = (host * launch.gpus_per_node + _snapshot_bytes(job, topology)) / GIB
    plan = MemoryPlan(training, sampling, _find_longest_sample(job, topology), cache, host, ())
    return replace(plan, faults=_faults(job, plan))


def find_node_memory(launch: LaunchConfig) -> tuple[str, float] | None:
    """Return the key that asks the scheduler for a node's main memory, and its value in GiB; None
    if the job asks for none, or for all.
    """
    key, text = None, None
    if isinstance(launch, SlurmLaunchConfig):
        # Slurm's units are binary; without one it is MiB, and 0 is all memory of the node.
        mem = launch.mem or "0"
        key, text = "launch.mem", f"{mem}i" if mem[-1].isalpha() else f"{mem}Mi"
    elif isinstance(launch, KubernetesLaunchConfig):
        key, text = "launch.pod.resources.memory", launch.pod.resources.get("memory")
    if key is None or text is None:
        return None
    number = text.rstrip("mkKMGTPEi")
    size = float(number) * _UNITS[text.removeprefix(number)] / GIB
    return (key, size) if size else None


def _faults(job: ClusterJob, plan: MemoryPlan) -> tuple[str, ...]:
    found: list[str] = []
    asked = find_node_memory(job.config.launch)
    if asked is not None and plan.host_gib > asked[1]:
        found.append(
            f"{asked[0]} is {asked[1]:,.0f} GiB of main memory per node, and the optimizer alone "
            f"needs about {plan.host_gib:,.0f}: raise it, or launch.nodes"
        )
    context = job.model.max_context_tokens
    if not plan.training.fits:
        found.append(_training_fault(job, plan))
    if not plan.sampling.fits:
        found.append(
            f"model.layout.engine_memory={job.model.layout.engine_memory:g} leaves too little for "
            f"the sleeping trainer: about {plan.sampling.total:.0f} of "
            f"{plan.sampling.available:g} GiB are needed; lower it"
        )
    if plan.cache_tokens < context:
        found.append(
            f"model.layout.engine_memory={job.model.layout.engine_memory:g} leaves an engine a "
            f"cache of {plan.cache_tokens:,} tokens, less than model.max_context_tokens="
            f"{context}: raise it or model.layout.engine_gpus"
        )
    return tuple(found)


def _training_fault(job: ClusterJob, plan: MemoryPlan) -> str:
    training, layout = plan.training, job.model.layout
    of = f"of {training.available:g} GiB (launch.gpu_memory_gib) in training"
    if plan.segment_tokens:
        return (
            f"model.layout.tokens_per_gpu={layout.tokens_per_gpu} needs about {training.total:.0f} "
            f"{of}: samples of {plan.segment_tokens:,} tokens would fit; lower it with "
            "model.max_context_tokens, or raise model.layout.context, tensor or expert"
        )
    weights = sum(size for name, size in training.parts if name in ("weights", "gradients"))
    keys = ["tensor", "pipeline"] if job.architecture.experts is None else ["expert", "pipeline"]
    given = " and ".join(f"model.layout.{key}={getattr(layout, key)}" for key in keys)
    return (
        f"{given} divide the model too little: a GPU needs about {training.total:.0f} {of}, "
        f"{weights:.0f} of them for weights and gradients, and no sample fits: raise one of them"
    )


def estimate_training(job: ClusterJob, topology: Topology, tokens: int) -> Phase:
    """Return the memory of training with microbatches of ``tokens`` tokens per rank."""
    count = sum(_fullest(job, topology))
    activations, logits = _activations(job, topology, tokens), _logits(job, topology, tokens)
    optimizer = 0.0 if job.trainer.optimizer_offload else _optimizer_bytes(job, topology)
    parts = {
        "weights": 2 * count / GIB,
        "gradients": 4 * count / GIB,
        "optimizer": optimizer / GIB,
        "activations": activations / GIB,
        "logits": logits / GIB,
        "fragmentation": FRAGMENTATION * (activations + logits) / GIB,
        "CUDA, NCCL": OVERHEAD_GIB,
        "sleeping engine": SLEEPING_GIB if topology.colocated else 0.0,
    }
    return Phase(tuple(parts.items()), job.launch.gpu_memory_gib)


def _find_longest_sample(job: ClusterJob, topology: Topology) -> int:
    """Return the longest sample that fits in training, in tokens over all context-parallel ranks;
    0 if none does.
    """
    low, high = 0, _LARGEST // topology.context
    while low < high:  # bisection: the memory grows with the tokens
        middle = (low + high + 1) // 2
        if estimate_training(job, topology, middle).fits:
            low = middle
        else:
            high = middle - 1
    return low * topology.context


def _stage_parameters(job: ClusterJob, topology: Topology, stage: int) -> tuple[float, float]:
    """Return a rank's dense and routed parameters in a pipeline stage."""
    each = count_parameters(job.architecture)
    layers = topology.stage_layers[stage]
    dense_layers = max(0, min(layers, each.dense_layers - sum(topology.stage_layers[:stage])))
    routed_layers = layers - dense_layers
    dense = layers * each.attention + dense_layers * each.dense + routed_layers * each.shared
    ends = (stage == 0) + (stage == topology.pipeline - 1)
    dense += each.embedding * min(ends, each.matrices)  # Tied stages have a copy each.
    routed = routed_layers * each.routed
    return dense / topology.tensor, routed / (topology.expert * topology.expert_tensor)


def _fullest(job: ClusterJob, topology: Topology) -> tuple[float, float]:
    stages = range(topology.pipeline)
    return max((_stage_parameters(job, topology, stage) for stage in stages), key=sum)


def _optimizer_bytes(job: ClusterJob, topology: Topology) -> float:
    dense, routed = _fullest(job, topology)
    shards = topology.data * topology.context
    return _MASTER_BYTES * (dense / shards + routed / topology.expert_data)


def _snapshot_bytes(job: ClusterJob, topology: Topology) -> float:
    """Return what a node keeps of the last weights that were sent, against which
    ``trainer.weight_sync=delta`` compares: that of the pipeline stages that begin on it.
    """
    if job.trainer.weight_sync == "full":
        return 0.0
    stages = max(1.0, topology.pipeline * topology.gpus_per_node / topology.train_gpus)
    share = stages / topology.pipeline
    return _engine_weight_bytes(job) * share * total_parameters(job.architecture)


def _engine_weight_bytes(job: ClusterJob) -> int:
    """Return the bytes of an engine's parameter, but of the embeddings, which stay bfloat16."""
    return 2 if job.model.fp8_path is None else 1


def _activations(job: ClusterJob, topology: Topology, tokens: int) -> float:
    a = job.architecture
    local = tokens / topology.tensor
    kept_bytes = 2 if job.trainer.recompute == "full" else 34
    inputs = kept_bytes * local * a.hidden * max(topology.stage_layers) * topology.pipeline
    return inputs + 2 * (_attention_work(job) * local + _feed_forward_work(job) * local)


def _attention_work(job: ClusterJob) -> float:
    """Return the activations of attention's forward pass, in bytes per token."""
    a = job.architecture
    match a.attention:
        case LatentAttention() as latent:
            head = 2 * (latent.nope_dim + latent.rope_dim) + 2 * latent.value_dim
            width = latent.heads * head + (latent.q_rank or 0) + latent.kv_rank
        case HybridAttention() as hybrid:
            keys, values = hybrid.linear_key_heads, hybrid.linear_value_heads
            width = hybrid.linear_head_dim * (2 * keys + 3 * values) * 2  # float32 states
        case grouped:
            width = grouped.head_dim * 2 * (grouped.heads + grouped.groups)
    return 2.0 * (width + 2 * a.hidden)


def _feed_forward_work(job: ClusterJob) -> float:
    """Return the activations of the feed-forward layer's forward pass, in bytes per token."""
    a, experts = job.architecture, job.architecture.experts
    if experts is None:
        return 6.0 * (a.dense_ffn or 0)
    copies = experts.top_k * EXPERT_IMBALANCE * (2 * a.hidden + 3 * experts.ffn)
    return 2.0 * (copies + 3 * max(experts.shared_ffn, a.dense_ffn or 0))


def _logits(job: ClusterJob, topology: Topology, tokens: int) -> float:
    vocabulary = job.architecture.vocabulary / topology.tensor
    chunk = 8 * min(tokens, job.trainer.logits_chunk) * vocabulary
    return _LOGITS_BYTES * tokens * vocabulary + chunk


def _estimate_sampling(job: ClusterJob, topology: Topology) -> tuple[Phase, int]:
    """Return the memory of sampling, and the capacity of an engine's cache in tokens."""
    available = job.launch.gpu_memory_gib
    weights = _engine_bytes(job, topology) / GIB
    share = job.model.layout.engine_memory * available
    cache = max(0.0, share - weights)
    parts = {
        "weights": weights,
        "KV cache": cache,
        "graphs, CUDA": SLEEPING_GIB,
        "sleeping trainer": OVERHEAD_GIB if topology.colocated else 0.0,
    }
    tokens = int(cache * GIB / _cache_bytes(job, topology)) * topology.engine_data
    return Phase(tuple(parts.items()), available), tokens


def _engine_bytes(job: ClusterJob, topology: Topology) -> float:
    a = job.architecture
    each: Parameters = count_parameters(a)
    dense_layers = each.dense_layers
    routed_layers = a.layers - dense_layers
    drafting = _drafting_layers(job)
    routed_layers += drafting if a.experts else 0
    dense_layers += 0 if a.experts else drafting
    attention = (a.layers + drafting) * each.attention / topology.engine_tensor
    embedding = each.matrices * each.embedding / topology.engine_tensor
    # With dp-attention, dense layers are replicated (--sglang-moe-dense-tp-size 1).
    dense_shards = 1 if topology.engine_data > 1 else topology.engine_gpus
    dense = (dense_layers * each.dense + routed_layers * each.shared) / dense_shards
    layers = attention + dense + routed_layers * each.routed / topology.engine_gpus
    return 2 * embedding + _engine_weight_bytes(job) * layers


def _drafting_layers(job: ClusterJob) -> int:
    """Return the number of the model's own layers with which an engine drafts; a draft model of its
    own, of about one layer, is not counted.
    """
    drafts = job.model.speculative
    return job.architecture.draft_layers if drafts.steps and drafts.path is None else 0


def _cache_bytes(job: ClusterJob, topology: Topology) -> float:
    """Return the size of one token in the KV cache of one GPU, in bytes."""
    a, drafting = job.architecture, _drafting_layers(job)
    match a.attention:
        case LatentAttention() as latent:
            return 2.0 * (a.layers + drafting) * (latent.kv_rank + latent.rope_dim)  # not sharded
        case HybridAttention() as hybrid:
            layers, groups, dim = a.layers // hybrid.full_every, hybrid.groups, hybrid.head_dim
        case grouped:
            layers, groups, dim = a.layers, grouped.groups, grouped.head_dim
    return 4.0 * (layers + drafting) * max(1.0, groups / topology.engine_tensor) * dim
