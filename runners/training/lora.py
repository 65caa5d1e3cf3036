"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685), by the library peft.

Beside each chosen linear layer ``W`` lies ``B·A · alpha/rank``, and A and B alone are trained. B
starts at 0, so the policy begins as its base. Invariants: the base's weights never change, not even
by rounding; the policy without its adapters is the one with which the run began.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conf.sections.training import LoraConfig
from runners.records.checkpoints import ADAPTER
from runners.training.contract import TrainingError
from runners.training.policy import find_decoder

WEIGHTS = "adapter_model.safetensors"
"""The name by which peft and SGLang find the adapters of a directory."""
EXPERT_NAMES = frozenset({"gate", "gate_proj", "up_proj", "down_proj"})
"""Names that peft takes for those of experts in a mixture, also where a dense layer has them."""
_NAME = "default"
"""Name of the adapters inside of peft."""


class Adapters:
    """The adapters of one policy, whose linear layers they replace in place."""

    def __init__(self, policy: Any, config: LoraConfig, *, base: Path, seed: int) -> None:
        """Add adapters to a causal language model of transformers; only they have gradients then.

        ``base``: the directory of its weights, which the saved adapters name; ``seed``: of A.
        Raises TrainingError without peft, and for targets that the policy does not have.
        """
        try:
            import peft
        except ImportError as error:
            raise TrainingError(
                "trainer.lora needs the package peft: pip install 'agentrl-campaigns[lora]'"
            ) from error
        others = _check_targets(policy, config.targets)
        self._config = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=list(config.targets),
            exclude_modules=others or None,
            base_model_name_or_path=str(base),
            task_type=peft.TaskType.CAUSAL_LM,
        )
        # peft asks for a property that transformers 5.23 has renamed
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.manual_seed(seed)
            self._peft: Any = peft.get_peft_model(policy, self._config)
        self._policy: nn.Module = policy

    def disabled(self) -> AbstractContextManager[None]:
        """Return a context in which the policy is its base."""
        found: AbstractContextManager[None] = self._peft.disable_adapter()
        return found

    def save(self, directory: Path) -> None:
        """Write ``directory/adapter`` in peft's layout, which SGLang loads too; raises OSError and
        SafetensorError.
        """
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        place = directory / ADAPTER
        place.mkdir(parents=True, exist_ok=True)
        tensors = get_peft_model_state_dict(self._peft)
        tensors = {name: each.cpu().contiguous() for name, each in tensors.items()}
        save_file(tensors, place / WEIGHTS)
        replace(self._config, inference_mode=True).save_pretrained(str(place))

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote; raises OSError, SafetensorError and KeyError."""
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        tensors = load_file(directory / ADAPTER / WEIGHTS)
        result: Any = set_peft_model_state_dict(self._peft, tensors)
        missing = [name for name in result.missing_keys if ".lora_" in name]
        if missing or result.unexpected_keys:
            raise KeyError(f"other adapters: {(missing or result.unexpected_keys)[0]}")

    @torch.no_grad()
    def merge(self) -> dict[str, Tensor]:
        """Return the weights of a policy without adapters that computes the same, by its names.

        Those of layers with adapters are copies: to merge in place and take it back would change
        the base by rounding. They are float32, also beside a base in bfloat16.
        """
        from peft.tuners.lora import LoraLayer

        weights = {
            name.replace(".base_layer.", "."): value
            for name, value in self._policy.state_dict().items()
            if ".lora_" not in name
        }
        layers: dict[str, Any] = {
            name: module
            for name, module in self._policy.named_modules()
            if isinstance(module, LoraLayer)
        }
        for name, layer in layers.items():
            whole, change = weights[f"{name}.weight"], layer.get_delta_weight(_NAME)
            weights[f"{name}.weight"] = whole.float() + change.float()
        return weights


def _check_targets(policy: nn.Module, targets: Sequence[str]) -> list[str]:
    """Return the modules of these names outside of the text decoder's layers, which get no adapter.

    Raises TrainingError if a target names no linear layer in them. Routers are modules of their own
    and experts are stacked in one parameter: neither is linear.
    """
    layers = find_decoder(policy).layers
    inside = {
        module: name.rpartition(".")[2]
        for name, module in layers.named_modules()
        if isinstance(module, nn.Linear)
    }
    known = set(inside.values())
    if any(".experts." in name for name, _ in layers.named_parameters()):
        known -= EXPERT_NAMES
    unknown = [target for target in targets if target not in known]
    if unknown:
        raise TrainingError(
            f"trainer.lora.targets: {', '.join(unknown)} is no linear layer of this policy that "
            f"can have an adapter; those are {', '.join(sorted(known))}"
        )
    return [
        name
        for name, module in policy.named_modules()
        if name.rpartition(".")[2] in targets and module not in inside
    ]
