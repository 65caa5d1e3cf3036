"""Estimate the GPU memory of a run here: what the local trainer takes, and what the engine takes.

The trainer keeps float32 weights, gradients and AdamW's two moments, whatever the checkpoint's
type, with ``trainer.precision=bfloat16`` also a copy of the weights to compute with, and
activations in proportion to the longest micro-batch. With ``trainer.shard`` each GPU has a part of
them, with ``optimizer`` also all weights to compute with, with ``model`` a layer or two at a time.
The counts per token and layer are those of transformers' Qwen3 layers (``tests/launch/test_gpu.py``
counts them); other families differ by some tens of percent, and linear attention, which
transformers computes in float32, by more. An estimate warns, it stops nothing.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.schema import Config
from conf.sections.engine import SglangLaunchEngineConfig
from conf.sections.training import LocalTrainerConfig, LoraConfig, TrainingPrecision
from launch.preflight import Problem

GIB = 1 << 30
FLOAT = 4
"""Bytes of a float32."""
HALF = 2
"""Bytes of a bfloat16."""
_PER_PARAMETER = 4 * FLOAT
"""Weight, gradient, two moments; AdamW updates them in place on a GPU."""
_CONTEXT_GIB = 1.0
"""CUDA's context, its libraries' workspaces and what the allocator cannot use."""
_ENGINE_BESIDE_GIB = 3.0
"""SGLang's memory beside its share for weights and KV cache: activations and CUDA graphs."""
_LOGITS_CHUNK = 1024
"""Tokens whose logits exist at once with recomputation, LOGITS_CHUNK of runners.training.recompute,
and those that are worked on at once without it, GPU_ROWS of runners.training.chosen_logprobs."""
_LOGITS_BESIDE = 2
"""Copies of one chunk's logits beside the buffer of all, which holds logits, then probabilities,
then gradients: ``runners.training.chosen_logprobs``."""
_LOGITS_WITH_ENTROPY = 5
"""Copies of all logits where the entropy has a gradient, and autograd keeps what it needs."""
_HEAD_COPIES = {"float32": 2, "bfloat16": 3}
"""float32 copies of the output layer while its gradient is summed over chunks: the sum, a chunk's
and, in bfloat16, the layer itself.
"""
_QUERY_S = 10.0
_HEADER_BYTES = 100_000_000
"""safetensors' own limit of a header's length."""


@dataclass(frozen=True, slots=True)
class PolicyShape:
    """Numbers of a decoder's ``config.json``."""

    layers: int
    hidden: int
    queries: int
    """Attention heads · their width."""
    heads: int
    keys: int
    """Heads of keys · their width."""
    key_heads: int
    intermediate: int
    """Width of a dense layer's MLP, or of one expert."""
    experts: int
    experts_per_token: int
    """0 for a dense policy."""
    vocabulary: int
    tied: bool
    """Embedding and output share one matrix."""

    def bytes_kept(self, precision: TrainingPrecision) -> int:
        """Return the bytes that one layer keeps per token for the backward pass.

        In bfloat16 norms and routers keep their input in float32.
        """
        size = _number_bytes(precision)
        widened = FLOAT - size
        attention = (6 * size + 2 * widened) * self.hidden
        attention += (4 * size + widened) * (self.queries + self.keys)
        scales = FLOAT * (2 + 2 * self.heads + self.key_heads)
        if not self.experts_per_token:
            return attention + scales + 4 * size * self.intermediate
        expert = size * (4 * self.intermediate + 2 * self.hidden) + 9 * FLOAT
        router = widened * self.hidden + FLOAT * self.experts
        return attention + scales + self.experts_per_token * expert + router


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """GPU memory of a run, in GiB."""

    parameters: int
    recompute: bool
    tokens: int
    """Of the longest micro-batch."""
    states_gib: float
    """Weights, gradients, moments, and the reference policy of a KL penalty; of a divided policy
    the layers that are whole at a time, too.
    """
    activations_gib: float
    """Of the layers."""
    logits_gib: float
    trainer_gib: float
    """All of it, with CUDA's context."""
    engine_gib: float | None
    """Memory that engine=sglang_launch takes; None: no such engine, or no GPU is seen here."""
    gpu_gib: float | None
    """Memory of the first GPU, which trainer and engine share; None: no GPU is seen here."""


def plan_gpu(config: Config) -> GpuPlan | None:
    """Return the plan of a run whose trainer uses a GPU, None for any other."""
    trainer, path = config.trainer, config.model.path
    if not isinstance(trainer, LocalTrainerConfig) or trainer.device == "cpu" or path is None:
        return None
    gpu_gib = read_gpu_gib()
    shape = read_shape(path / "config.json")
    if shape is None or (trainer.device == "auto" and gpu_gib is None):
        return None
    recompute = trainer.recompute is not False
    tokens = max(trainer.tokens_per_microbatch, config.model.max_context_tokens)
    parameters = count_parameters(path, tied=shape.tied)
    states = count_state_bytes(path, parameters, trainer) / GIB
    loading = 0.0
    if trainer.shard != "none":
        states += count_gathered_bytes(shape, parameters, trainer) / GIB
        loading = parameters * FLOAT / GIB + (states if trainer.kl.weight else 0.0)
    activations = activation_bytes(shape, tokens, trainer.precision, recompute=recompute) / GIB
    rows = min(tokens, _LOGITS_CHUNK) if recompute else tokens
    logits = count_logits_bytes(shape.vocabulary, rows, trainer.entropy_bonus)
    logits += shape.vocabulary * shape.hidden * FLOAT * _HEAD_COPIES[trainer.precision]
    engine = None
    if isinstance(config.engine, SglangLaunchEngineConfig) and gpu_gib is not None:
        engine = config.engine.memory_fraction * gpu_gib + _ENGINE_BESIDE_GIB
    return GpuPlan(
        parameters=parameters,
        recompute=recompute,
        tokens=tokens,
        states_gib=round(states, 1),
        activations_gib=round(activations, 1),
        logits_gib=round(logits / GIB, 1),
        trainer_gib=round(max(loading, states + activations + logits / GIB) + _CONTEXT_GIB, 1),
        engine_gib=None if engine is None else round(engine, 1),
        gpu_gib=None if gpu_gib is None else round(gpu_gib, 1),
    )


def count_state_bytes(path: Path | None, parameters: int, trainer: LocalTrainerConfig) -> int:
    """Return the bytes of weights, gradients and moments in one process, and of the reference
    policy of a KL penalty; with adapters the base has weights only, and is the reference.

    ``path``: the policy's directory, which has so many ``parameters``; None: it is not made yet,
    and its adapters are not counted.
    """
    copy = _number_bytes(trainer.precision)
    if trainer.lora.rank:
        adapters = 0 if path is None else count_adapter_parameters(path, trainer.lora)
        return parameters * copy + adapters * _PER_PARAMETER
    reference = copy * (trainer.kl.weight > 0)
    if trainer.shard != "none":
        whole = parameters * copy if trainer.shard == "optimizer" else 0
        return parameters * (_PER_PARAMETER + reference) // trainer.devices + whole
    rounded = copy * (trainer.precision != "float32")
    return parameters * (_PER_PARAMETER + rounded + reference)


def count_gathered_bytes(shape: PolicyShape, parameters: int, trainer: LocalTrainerConfig) -> int:
    """Return the bytes of what is whole at a time of a sharded policy: the gradient of one layer,
    and of two in float32 to add up; with ``model`` also two layers, and the output layer.
    """
    number, matrix = _number_bytes(trainer.precision), shape.vocabulary * shape.hidden
    layer = (parameters - matrix * (1 if shape.tied else 2)) // shape.layers
    gradients = layer * (number + 2 * FLOAT)
    return gradients + (0 if trainer.shard == "optimizer" else number * (2 * layer + matrix))


def _number_bytes(precision: TrainingPrecision) -> int:
    return FLOAT if precision == "float32" else HALF


def activation_bytes(
    shape: PolicyShape, tokens: int, precision: TrainingPrecision, *, recompute: bool
) -> int:
    """Return the bytes of a micro-batch's activations in all layers.

    With ``recompute`` a layer keeps its input, and one layer at a time keeps everything.
    """
    whole = shape.bytes_kept(precision) * tokens
    if not recompute:
        return whole * shape.layers
    return whole + shape.layers * shape.hidden * tokens * _number_bytes(precision)


def count_logits_bytes(vocabulary: int, rows: int, entropy_bonus: float) -> int:
    """Return the bytes of so many tokens' logits at their peak, which is in the backward pass."""
    beside = _LOGITS_BESIDE * min(rows, _LOGITS_CHUNK)
    held = _LOGITS_WITH_ENTROPY * rows if entropy_bonus else rows + beside
    return held * vocabulary * FLOAT


def find_gpu_problems(config: Config, plan: GpuPlan | None) -> Iterator[Problem]:
    """Yield a warning if trainer and engine do not fit into one GPU."""
    if plan is None or plan.gpu_gib is None:
        return
    engine = plan.engine_gib or 0.0
    if plan.trainer_gib + engine <= plan.gpu_gib:
        return
    fixes = []
    if plan.engine_gib is not None:
        free = plan.gpu_gib - plan.trainer_gib - _ENGINE_BESIDE_GIB
        left = math.floor(free / plan.gpu_gib * 100) / 100
        if left >= 0.1:
            fixes.append(f"engine.memory_fraction={left:.2f}")
    if not plan.recompute:
        fixes.append("trainer.recompute=true")
    trainer = config.trainer
    if isinstance(trainer, LocalTrainerConfig) and trainer.devices > 1 and not trainer.lora.rank:
        stronger = {"none": ["optimizer", "model"], "optimizer": ["model"], "model": []}
        fixes += [f"trainer.shard={choice}" for choice in stronger[trainer.shard]]
    fixes.append("a lower model.max_context_tokens, or a smaller policy")
    beside = f" and the engine's {engine:.1f} GiB" if plan.engine_gib is not None else ""
    yield Problem(
        False,
        f"about {plan.trainer_gib:.1f} GiB for the trainer{beside} do not fit into the GPU's "
        f"{plan.gpu_gib:.1f} GiB: {', or '.join(fixes)}",
    )


def read_gpu_gib() -> float | None:
    """Return the memory of this machine's first GPU in GiB, None if none is seen."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_S)
        return float(done.stdout.split()[0]) / 1024
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None


def read_shape(file: Path) -> PolicyShape | None:
    """Return the numbers of a ``config.json``, None if it is not that of a decoder we can count."""
    try:
        document: dict[str, Any] = json.loads(file.read_text("utf-8"))
        text: dict[str, Any] = document.get("text_config", document)
        heads = int(text["num_attention_heads"])
        key_heads = int(text.get("num_key_value_heads") or heads)
        width = int(text.get("head_dim") or text["hidden_size"] // heads)
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        experts = next((int(text[name]) for name in names if text.get(name)), 0)
        return PolicyShape(
            layers=int(text["num_hidden_layers"]),
            hidden=int(text["hidden_size"]),
            queries=heads * width,
            heads=heads,
            keys=key_heads * width,
            key_heads=key_heads,
            intermediate=int(text["moe_intermediate_size" if experts else "intermediate_size"]),
            experts=experts,
            experts_per_token=int(text["num_experts_per_tok"]) if experts else 0,
            vocabulary=int(text["vocab_size"]),
            tied=bool(document.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def count_parameters(directory: Path, *, tied: bool) -> int:
    """Return the number of parameters in a directory of safetensors, whatever their type.

    Only headers are read. ``tied``: the output matrix is the embedding, even if both are stored.
    """
    return sum(
        math.prod(tensor["shape"])
        for file in sorted(directory.glob("*.safetensors"))
        for name, tensor in _read_header(file).items()
        if name != "__metadata__" and not (tied and name == "lm_head.weight")
    )


def count_adapter_parameters(directory: Path, lora: LoraConfig) -> int:
    """Return the number of parameters in the adapters of a policy: rank · (rows + columns) of each
    matrix that they are beside.
    """
    return sum(
        lora.rank * sum(tensor["shape"])
        for file in sorted(directory.glob("*.safetensors"))
        for name, tensor in _read_header(file).items()
        if name.endswith(".weight")
        and name.split(".")[-2] in lora.targets
        and ".experts." not in name  # they have none, whatever their names
    )


def _read_header(file: Path) -> dict[str, Any]:
    """Return a safetensors header: 8 bytes of length, little-endian, then JSON; {} if damaged."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header: dict[str, Any] = json.loads(stream.read(min(length, _HEADER_BYTES)))
    except (OSError, ValueError, struct.error):
        return {}
    return header
