"""The starting policy's tokenizer: that of the tests, trained on demonstrations, with NFC.

Invariant: any text round-trips, since every byte is a token. Text of the demonstrations is short.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, normalizers

from runners.records.tokenizer import MARKERS, SPECIAL
from runners.records.tokenizer import train_tokenizer as train_tiny_tokenizer

BYTES_ONLY = 256 + len(SPECIAL) + len(MARKERS)
"""The smallest vocabulary: no merges."""


def train_tokenizer(texts: Iterable[str], *, size: int) -> Tokenizer:
    """Train on texts; at most ``size`` tokens in total. The same texts give the same tokenizer."""
    tokenizer = train_tiny_tokenizer(texts, size - len(SPECIAL) - len(MARKERS))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write ``tokenizer.json``, and ``tokenizer_config.json`` for transformers' AutoTokenizer."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
