"""A policy of transformers on the device where it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from conf.errors import AgentrlError


class TrainingError(AgentrlError):
    """Training cannot go on: the loss or a gradient is not finite, or the weights do not fit."""


def load_policy(directory: Path) -> nn.Module:
    """Load a policy from a directory in the Hugging Face layout, float32; raises TrainingError."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        policy: nn.Module = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, experts_implementation="grouped_mm"
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainingError(f"cannot load the policy from {directory}: {error}") from error
    return policy


def find_device(choice: str) -> torch.device:
    """Return the device that ``trainer.device`` names; raises TrainingError."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise TrainingError(
            "trainer.device=cuda, but torch sees no GPU here: use trainer.device=auto or cpu"
        )
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


def decay_groups(policy: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the optimizer's groups of parameters: matrices decay, norms and biases do not."""
    parameters = list(policy.parameters())
    groups = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": weight_decay},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
