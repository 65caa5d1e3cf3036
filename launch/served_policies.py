"""Policies that can be trained, but that SGLang would not serve as they are."""

from __future__ import annotations

import json
from pathlib import Path

_OWN_OUTPUT_LAYER = frozenset({"qwen3_moe", "qwen3_next", "glm4_moe"})
"""``model_type`` of mixtures whose classes in SGLang (0.5.15 to 0.5.23, both read) make an output
layer whatever ``tie_word_embeddings`` says; a tied checkpoint has no weights for it, and none are
missed.
"""


def find_lost_output_layer(file: Path) -> str | None:
    """Return the ``model_type`` of a ``config.json`` whose tied output layer SGLang would leave as
    it was allocated; None if it would not, or if the file cannot be read.
    """
    try:
        document = json.loads(file.read_text("utf-8"))
        family, tied = str(document["model_type"]), document.get("tie_word_embeddings", False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return family if tied and family in _OWN_OUTPUT_LAYER else None
