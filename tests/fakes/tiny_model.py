"""A random Qwen3-MoE in a directory, as ``save_pretrained`` writes it: for tests that need a model,
not a policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


def write_tiny_model(
    directory: Path, *, vocab_size: int = 800, seed: int = 0, **overrides: Any
) -> Path:
    """Write config.json and model.safetensors of a seeded random model; ``overrides`` go to
    Qwen3MoeConfig.

    Weights are larger than the library's initialisation, so that its distributions are far from
    uniform and a wrong position, head or expert shows.
    """
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
        "initializer_range": 0.1,
        "eos_token_id": None,
        "pad_token_id": None,
        "bos_token_id": None,
        **overrides,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings))
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.data.uniform_(0.7, 1.4)
    model.save_pretrained(directory)
    return directory


def policy_logprobs(directory: Path, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return each token's logprob under a policy, float32 [T]; 0 for the first."""
    policy = Qwen3MoeForCausalLM.from_pretrained(directory)
    ids = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        logprobs = policy(ids[None]).logits[0].log_softmax(-1)
    chosen = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
    return np.append(np.zeros(1, np.float32), chosen.numpy())
