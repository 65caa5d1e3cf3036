"""A small byte-level BPE with Qwen's special tokens, trained on a few lines: quick to make, exact
on any text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added tokens that are ordinary text to ``skip_special_tokens``, as in Qwen's own tokenizer."""

SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Qwen's pre-tokenisation."""

LINES = (
    'You may call one or more functions: {"type": "function", "function": {"name": "Bash"',
    '"description": "Run a command.", "parameters": {"type": "object", "properties": {"command":',
    '{"type": "string"}}, "required": ["command"]}',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "calc.py"}}\n</tool_call>',
    "system user assistant tool_response the function adds a and b but subtracts; return a - b",
    '{"name": "Edit", "arguments": {"file_path": "calc.py", "old_string": "a - b"}}',
)


@cache
def tiny_tokenizer() -> Tokenizer:
    """Train the tokenizer (about 0.05 s; the same in every process)."""
    return train_tokenizer(LINES, 420)


def train_tokenizer(lines: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a tokenizer of so many tokens, without the added ones, on other lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return tokenizer


def write_tiny_tokenizer(directory: Path, tokenizer: Tokenizer | None = None) -> Path:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``directory`` and return it.

    ``tokenizer``: another one of ``train_tokenizer``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (tokenizer or tiny_tokenizer()).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>"}), "utf-8"
    )
    return directory
