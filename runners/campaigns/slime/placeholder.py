"""Placeholders: rows without weight, for rollouts of which nothing can be trained.

slime wants a row for every rollout. A placeholder is fully masked, has advantage 0 and counts in no
average. There are two kinds: one made of the rollout's prompt, and, should even that fail, a
constant that needs neither tokenizer, nor configuration, nor stored turns.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from runners.records.record import IdArray
from runners.records.routing import Routing, RoutingShape, make_unrouted
from runners.training.sample import Sample

PROMPT_TOKENS = 512
"""Most tokens kept of a prompt: the row has no weight, but the trainer computes it."""


def read_pad_token(model: Path) -> int:
    """Return a model's padding token id: ``pad_token_id``, which may be a list, else
    ``eos_token_id``, else 0, which every vocabulary has. Never raises.
    """
    try:
        whole = json.loads((model / "config.json").read_text("utf-8"))
        nested = whole.get("text_config") or {}
        for name in ("pad_token_id", "eos_token_id"):
            for part in (nested, whole):
                value = part.get(name)
                first = value[0] if isinstance(value, list) and value else value
                if isinstance(first, int) and first >= 0:
                    return first
    except (OSError, ValueError, AttributeError):
        pass
    return 0


def prompt_placeholder(
    rollout_id: str, prompt: IdArray, pad: int, routing: RoutingShape | None
) -> Sample:
    """Return a row of the first PROMPT_TOKENS of a rollout's first prompt, int32 [n], and ``pad``
    in place of an answer.
    """
    tokens = np.append(prompt[:PROMPT_TOKENS], pad).astype(np.int32)
    return _row(rollout_id, tokens, make_unrouted(routing, len(tokens)) if routing else None)


def constant_placeholder(rollout_id: str, pad: int, routing: RoutingShape | None) -> Sample:
    """Return the constant row: one token of prompt and one of answer, both ``pad``."""
    return _row(
        rollout_id, np.full(2, pad, np.int32), make_unrouted(routing, 2) if routing else None
    )


def _row(rollout_id: str, tokens: IdArray, routing: Routing | None) -> Sample:
    return Sample(
        rollout_id=rollout_id,
        tokens=tokens,
        loss_mask=np.zeros(len(tokens), bool),
        logprobs=np.zeros(len(tokens), np.float32),
        advantage=0.0,
        routing=routing,
    )
