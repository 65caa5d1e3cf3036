"""Does the job fit: GPU memory of the fullest rank while training and while sampling.

It is an estimate. What it assumes, and where that comes from:

* Parameters are bfloat16 (2 bytes), their gradients float32 (4: Megatron's
  ``--accumulate-allreduce-grads-in-fp32``). Dense ones are sharded over TP and PP, experts over EP,
  ETP and PP.
* Adam keeps a float32 copy and two moments (12 bytes) and shards them over the replicas
  (``--use-distributed-optimizer``, ZeRO-1, arXiv 1910.02054); with ``trainer.optimizer_offload``
  they lie in the node's main memory.
* With full recompute a layer keeps its bfloat16 input, sharded over TP (sequence parallelism,
  arXiv 2205.05198); the first of PP stages holds PP microbatches. One layer at a time is computed
  again: attention's projections, and top-k copies of each token through its expert, forward and
  backward. Selective recompute keeps 34 bytes per token and hidden unit instead of 2 (the same
  paper, without the attention matrix).
* Experts are unevenly loaded: the fullest rank gets ``EXPERT_IMBALANCE`` of an even share.
* The last stage holds logits as bfloat16 and float32, their softmax for the backward pass, and the
  gradients of both: 16 bytes per token and vocabulary row, sharded over TP; what else the
  log-softmax needs, it needs for ``trainer.logits_chunk`` tokens.
* CUDA, NCCL and DeepEP keep ``OVERHEAD_GIB``. Colocated, an engine that sleeps keeps
  ``SLEEPING_GIB`` (context and graphs: its weights and cache are released).
* The allocator wastes ``FRAGMENTATION`` of what comes and goes. This figure is judged by one known
  case: of Qwen3.6-35B-A3B on 80 GB cards (TP 2, CP 8, EP 8) a sample of 100k tokens fitted, one of
  152k did not.
* An engine takes ``model.layout.engine_memory`` of the GPU, its weights in bfloat16: attention over
  its attention shards, experts over the engine's GPUs, the vocabulary over the attention shards.
  What is left of that share is KV cache; the states of linear layers, a constant per request, are
  left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from conf.sections.moe import HybridAttention, LatentAttention
from launch.architecture import Parameters, parameters
from launch.topology import ClusterJob, Topology

GIB = float(1 << 30)
EXPERT_IMBALANCE = 2.0
OVERHEAD_GIB = 5.0
SLEEPING_GIB = 3.0
FRAGMENTATION = 0.15
_MASTER_BYTES = 12
_LOGITS_BYTES = 16
_LARGEST = 1 << 24
"""Tokens at which the search for the largest segment ends."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's memory on its fullest rank, in GiB by what takes it."""

    parts: tuple[tuple[str, float], ...]
    available: float

    @property
    def total(self) -> float:
        """What the phase takes."""
        return sum(size for _, size in self.parts)

    @property
    def fits(self) -> bool:
        """Whether the GPU has that much."""
        return self.total <= self.available


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A job's memory."""

    training: Phase
    sampling: Phase
    segment_tokens: int
    """Longest sample that training has room for."""
    cache_tokens: int
    """Tokens that an engine's KV cache holds."""
    host_gib: float
    """Optimizer state in a node's main memory."""
    faults: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self) | {"training": _phase(self.training), "sampling": _phase(self.sampling)}


def _phase(phase: Phase) -> dict[str, Any]:
    parts = {name: round(size, 2) for name, size in phase.parts}
    return {
        "gib": parts,
        "total_gib": round(phase.total, 2),
        "available_gib": phase.available,
        "fits": phase.fits,
    }


def memory(job: ClusterJob, found: Topology) -> MemoryPlan:
    """Return what the job takes of its GPUs, and why it would not fit."""
    layout, launch = job.model.layout, job.launch
    training = training_phase(job, found, layout.tokens_per_gpu)
    sampling, cache = _sampling(job, found)
    host = 0.0
    if job.trainer.optimizer_offload:
        host = _optimizer_bytes(job, found) / GIB * launch.gpus_per_node
    plan = MemoryPlan(training, sampling, segment_tokens(job, found), cache, host, ())
    return MemoryPlan(training, sampling, plan.segment_tokens, cache, host, _faults(job, plan))


def _faults(job: ClusterJob, plan: MemoryPlan) -> tuple[str, ...]:
    found: list[str] = []
    context = job.model.max_context_tokens
    if not plan.training.fits:
        found.append(
            f"model.layout.tokens_per_gpu={job.model.layout.tokens_per_gpu} needs about "
            f"{plan.training.total:.0f} of {plan.training.available:g} GiB (launch.gpu_memory_gib) "
            f"in training: samples of {plan.segment_tokens:,} tokens would fit; lower it with "
            "model.max_context_tokens, or raise model.layout.context, tensor or expert"
        )
    if not plan.sampling.fits:
        found.append(
            f"model.layout.engine_memory={job.model.layout.engine_memory:g} leaves too little for "
            f"what stays of training: about {plan.sampling.total:.0f} of "
            f"{plan.sampling.available:g} GiB are needed; lower it"
        )
    if plan.cache_tokens < context:
        found.append(
            f"model.layout.engine_memory={job.model.layout.engine_memory:g} leaves an engine a "
            f"cache of {plan.cache_tokens:,} tokens, less than model.max_context_tokens="
            f"{context}: raise it or model.layout.engine_gpus"
        )
    return tuple(found)


def training_phase(job: ClusterJob, found: Topology, tokens: int) -> Phase:
    """Return what training takes with microbatches of ``tokens`` per rank."""
    count = _rank_parameters(job, found)
    coming = _activations(job, found, tokens) + _logits(job, found, tokens)
    optimizer = 0.0 if job.trainer.optimizer_offload else _optimizer_bytes(job, found)
    parts = {
        "weights": 2 * count / GIB,
        "gradients": 4 * count / GIB,
        "optimizer": optimizer / GIB,
        "activations": _activations(job, found, tokens) / GIB,
        "logits": _logits(job, found, tokens) / GIB,
        "fragmentation": FRAGMENTATION * coming / GIB,
        "CUDA, NCCL": OVERHEAD_GIB,
        "sleeping engine": SLEEPING_GIB if found.colocated else 0.0,
    }
    return Phase(tuple(parts.items()), job.launch.gpu_memory_gib)


def segment_tokens(job: ClusterJob, found: Topology) -> int:
    """Return the longest sample (all context-parallel ranks together) that training has room for;
    0 if none has.
    """
    low, high = 0, _LARGEST // found.context
    while low < high:  # the need grows with the tokens
        middle = (low + high + 1) // 2
        if training_phase(job, found, middle).fits:
            low = middle
        else:
            high = middle - 1
    return low * found.context


def _stage_parameters(job: ClusterJob, found: Topology, stage: int) -> tuple[float, float]:
    """Return a rank's dense and routed parameters in a pipeline stage."""
    each, experts = parameters(job.model.architecture), job.model.architecture.experts
    layers = found.stage_layers[stage]
    dense_layers = max(0, min(layers, experts.dense_layers - sum(found.stage_layers[:stage])))
    routed_layers = layers - dense_layers
    dense = layers * each.attention + dense_layers * each.dense + routed_layers * each.shared
    dense += each.embedding * ((stage == 0) + (stage == found.pipeline - 1))
    routed = routed_layers * each.routed
    return dense / found.tensor, routed / (found.expert * found.expert_tensor)


def _fullest(job: ClusterJob, found: Topology) -> tuple[float, float]:
    stages = range(found.pipeline)
    return max((_stage_parameters(job, found, stage) for stage in stages), key=sum)


def _rank_parameters(job: ClusterJob, found: Topology) -> float:
    return sum(_fullest(job, found))


def _optimizer_bytes(job: ClusterJob, found: Topology) -> float:
    dense, routed = _fullest(job, found)
    shards = found.data * found.context
    return _MASTER_BYTES * (dense / shards + routed / found.expert_data)


def _activations(job: ClusterJob, found: Topology, tokens: int) -> float:
    a = job.model.architecture
    local = tokens / found.tensor
    kept = 2 if job.trainer.recompute == "full" else 34
    inputs = kept * local * a.hidden * max(found.stage_layers) * found.pipeline
    return inputs + 2 * (_attention_work(job) * local + _expert_work(job) * local)


def _attention_work(job: ClusterJob) -> float:
    """Return the bytes of a token in attention's forward pass."""
    a = job.model.architecture
    match a.attention:
        case LatentAttention() as latent:
            head = 2 * (latent.nope_dim + latent.rope_dim) + 2 * latent.value_dim
            width = latent.heads * head + latent.q_rank + latent.kv_rank
        case HybridAttention() as hybrid:
            keys, values = hybrid.linear_key_heads, hybrid.linear_value_heads
            width = hybrid.linear_head_dim * (2 * keys + 3 * values) * 2  # float32 states
        case grouped:
            width = grouped.head_dim * 2 * (grouped.heads + grouped.groups)
    return 2.0 * (width + 2 * a.hidden)


def _expert_work(job: ClusterJob) -> float:
    """Return the bytes of a token in the experts' forward pass."""
    a, experts = job.model.architecture, job.model.architecture.experts
    copies = experts.top_k * EXPERT_IMBALANCE * (2 * a.hidden + 3 * experts.ffn)
    return 2.0 * (copies + 3 * max(experts.shared_ffn, a.dense_ffn or 0))


def _logits(job: ClusterJob, found: Topology, tokens: int) -> float:
    vocabulary = job.model.architecture.vocabulary / found.tensor
    chunk = 8 * min(tokens, job.trainer.logits_chunk) * vocabulary
    return _LOGITS_BYTES * tokens * vocabulary + chunk


def _sampling(job: ClusterJob, found: Topology) -> tuple[Phase, int]:
    """Return the sampling phase, and the tokens that an engine's cache holds."""
    available = job.launch.gpu_memory_gib
    weights = _engine_bytes(job, found) / GIB
    share = job.model.layout.engine_memory * available
    cache = max(0.0, share - weights)
    parts = {
        "weights": weights,
        "KV cache": cache,
        "graphs, CUDA": SLEEPING_GIB,
        "sleeping trainer": OVERHEAD_GIB if found.colocated else 0.0,
    }
    tokens = int(cache * GIB / _cache_bytes(job, found)) * found.engine_data
    return Phase(tuple(parts.items()), available), tokens


def _engine_bytes(job: ClusterJob, found: Topology) -> float:
    a = job.model.architecture
    each: Parameters = parameters(a)
    dense_layers = a.experts.dense_layers
    routed_layers = a.layers - dense_layers
    attention = (a.layers * each.attention + 2 * each.embedding) / found.engine_tensor
    # With dp-attention, dense layers are replicated (--sglang-moe-dense-tp-size 1).
    dense_shards = 1 if found.engine_data > 1 else found.engine_gpus
    dense = (dense_layers * each.dense + routed_layers * each.shared) / dense_shards
    return 2 * (attention + dense + routed_layers * each.routed / found.engine_gpus)


def _cache_bytes(job: ClusterJob, found: Topology) -> float:
    """Return the bytes of one token in the KV cache of one GPU."""
    a = job.model.architecture
    match a.attention:
        case LatentAttention() as latent:
            return 2.0 * a.layers * (latent.kv_rank + latent.rope_dim)  # not sharded
        case HybridAttention() as hybrid:
            layers, groups, dim = a.layers // hybrid.full_every, hybrid.groups, hybrid.head_dim
        case grouped:
            layers, groups, dim = a.layers, grouped.groups, grouped.head_dim
    return 4.0 * layers * max(1.0, groups / found.engine_tensor) * dim
