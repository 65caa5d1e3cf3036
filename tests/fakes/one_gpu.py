"""Files of Qwen3-0.6B without its weights: its numbers, and a safetensors file that is a header."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from runners.records.tokenizer import write_tiny_tokenizer

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
LAYER = {
    "self_attn.q_proj.weight": [2048, 1024], "self_attn.k_proj.weight": [1024, 1024],
    "self_attn.v_proj.weight": [1024, 1024], "self_attn.o_proj.weight": [1024, 2048],
    "self_attn.q_norm.weight": [128], "self_attn.k_norm.weight": [128],
    "mlp.gate_proj.weight": [3072, 1024], "mlp.up_proj.weight": [3072, 1024],
    "mlp.down_proj.weight": [1024, 3072],
    "input_layernorm.weight": [1024], "post_attention_layernorm.weight": [1024],
}  # fmt: skip


def write_qwen3_0_6b(root: Path) -> Path:
    """Write the directory of the model below ``root``; its weights are a header without data."""
    directory = root / "Qwen3-0.6B"
    directory.mkdir()
    write_tiny_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    shapes = {
        "model.embed_tokens.weight": [151_936, 1024],
        "lm_head.weight": [151_936, 1024],
        "model.norm.weight": [1024],
        **{f"model.layers.{n}.{name}": s for n in range(28) for name, s in LAYER.items()},
    }
    tensors = {name: {"dtype": "BF16", "shape": s} for name, s in shapes.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return directory
