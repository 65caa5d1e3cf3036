"""A policy of transformers on the device where it trains."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from conf.sections.training import LocalTrainerConfig
from runners.training.contract import TrainingError


def load_policy(directory: Path) -> nn.Module:
    """Load a policy from a directory in the Hugging Face layout, float32.

    One of several modalities is loaded whole, so that its checkpoints have the layout in which it
    was published; only its text decoder can have gradients. Raises TrainingError.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        config = AutoConfig.from_pretrained(directory)
        wrapped = config.get_text_config() is not config
        kind: Any = AutoModelForImageTextToText if wrapped else AutoModelForCausalLM
        policy: nn.Module = kind.from_pretrained(directory, dtype=torch.float32)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise TrainingError(f"cannot load the policy from {directory}: {error}") from error
    if wrapped:
        policy.requires_grad_(False)
        find_decoder(policy).requires_grad_(True)
        find_head(policy).requires_grad_(True)
    return policy


def find_decoder(policy: Any) -> Any:
    """Return a policy's text decoder: from token ids to hidden states."""
    return policy.get_decoder()


def find_head(policy: Any) -> nn.Linear:
    """Return the linear layer from a policy's last hidden states to its logits."""
    head: nn.Linear = policy.get_output_embeddings()
    return head


def find_device(choice: str) -> torch.device:
    """Return the device that ``trainer.device`` names; raises TrainingError."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise TrainingError(
            "trainer.device=cuda, but torch sees no GPU here: use trainer.device=auto or cpu"
        )
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


def require_devices(choice: str, number: int) -> torch.device:
    """Return the device that ``trainer.device`` names, of which there are ``trainer.devices``
    enough; raises TrainingError.
    """
    device = find_device(choice)
    seen = torch.cuda.device_count() if device.type == "cuda" else number
    if seen < number:
        raise TrainingError(f"trainer.devices={number}, and torch sees {seen} GPUs here: lower it")
    return device


def make_optimizer(
    parameters: Iterable[nn.Parameter], config: LocalTrainerConfig, device: torch.device
) -> torch.optim.AdamW:
    """Return AdamW on float32 parameters.

    On a GPU it is one kernel; elsewhere it makes a copy of all parameters while it updates them.
    """
    fused = device.type == "cuda"
    return torch.optim.AdamW(
        decay_groups(parameters, config.weight_decay),
        lr=config.learning_rate, betas=config.betas, fused=fused, foreach=not fused,
    )  # fmt: skip


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return the optimizer's groups of parameters: matrices decay, norms, biases and the decays of
    linear attention do not.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for each in parameters:  # sharded ones apart: AdamW treats a group in one call
        groups.setdefault((each.dim() > 1, isinstance(each, DTensor)), []).append(each)
    return [
        {"params": group, "weight_decay": weight_decay if decays else 0.0}
        for (decays, _), group in groups.items()
    ]
