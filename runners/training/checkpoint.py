"""Save and restore the local trainer: weights that an engine can load, their tokenizer, optimizer
state, random state, and the step's metrics.

Invariant: a directory with a checkpoint's name (``records/checkpoints.py``) is complete. It is
written under another name, flushed to disk and renamed, and renamed back before it is deleted.
Nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import ExitCode
from runners.records.checkpoints import (
    OPTIMIZER,
    PARTIAL,
    STATE,
    Checkpoint,
    CheckpointError,
    directory,
    flush,
    remove,
)

if TYPE_CHECKING:  # a run looks for its checkpoint before torch is imported, which takes seconds
    import torch

    from runners.training.local import LocalTrainer

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json"),
)
"""Files of a tokenizer and its chat template in the Hugging Face layout; copied where present."""


def save(
    trainer: LocalTrainer,
    root: Path,
    *,
    step: int,
    state: dict[str, Any],
    run_id: str | None = None,
    tokenizer: Path | None = None,
) -> Checkpoint:
    """Write the checkpoint of ``step`` below ``root``.

    ``state``: anything JSON can hold, with the step's ``metrics``. ``tokenizer``: the directory of
    the policy's tokenizer, whose files go with the weights, so that
    ``AutoTokenizer`` and ``AutoModelForCausalLM`` load the checkpoint. Raises CheckpointError if
    the disk refuses; earlier checkpoints are then untouched.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    final = directory(root, step)
    partial = final.with_name(final.name + PARTIAL)
    try:
        for left in root.glob(f"*{PARTIAL}"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        partial.mkdir(parents=True)
        _save_policy(trainer, partial)
        save_file(dict(_gather_optimizer(trainer)), partial / OPTIMIZER)
        for name in TOKENIZER_FILES:
            if tokenizer is not None and (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, partial / name)
        document = {"run": run_id, "step": step, "state": state}
        (partial / STATE).write_text(json.dumps(document))
        for file in partial.rglob("*"):
            flush(file)
        flush(partial)  # the names of its files
        if final.exists():
            remove(final)
        partial.rename(final)
        flush(root)  # the rename itself
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"cannot write checkpoint {final}: {error}; free some space and continue with --resume",
            ExitCode.SERVICE_GONE,
        ) from error
    return Checkpoint(final, step)


def give_parts(trainer: LocalTrainer) -> None:
    """Take part in another process's ``save`` of weights and moments that are divided among
    processes; nothing is written. Raises PeersLostError.
    """
    from runners.training.sharded_policy import ShardedPolicy

    if isinstance(trainer.weights, ShardedPolicy):
        for _ in chain(trainer.weights.gather(), _gather_optimizer(trainer)):
            pass  # one at a time: nobody here needs all of them


def restore(trainer: LocalTrainer, checkpoint: Checkpoint) -> None:
    """Load weights, optimizer, random state and step counter into a trainer of the same model.

    The trainer then continues bit for bit. Raises CheckpointError.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from runners.training.contract import TrainingError
    from runners.training.policy import load_policy

    try:
        # Not load_file: on disk the experts have the published names, one tensor per expert, which
        # the loader of transformers joins.
        if trainer.adapters is not None:
            trainer.adapters.load(checkpoint.path)
        else:
            trainer.weights.load_state_dict(load_policy(checkpoint.path).state_dict())
        tensors = load_file(checkpoint.path / OPTIMIZER)
        trainer.generator.set_state(tensors.pop("generator"))
        _load_optimizer(trainer, tensors)
        trainer.steps = checkpoint.step
    except (OSError, SafetensorError, KeyError, RuntimeError, TrainingError) as error:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} cannot be read ({error}): restore it from a copy, or "
            "remove it and add --rewind"
        ) from error


def _save_policy(trainer: LocalTrainer, directory: Path) -> None:
    """Write the weights; with adapters these, and merged weights if the engine takes no adapters.

    Merged weights are never read back into the trainer: they are rounded.
    """
    policy: Any = trainer.model
    if trainer.adapters is None:
        policy.save_pretrained(directory, state_dict=trainer.weights.state_dict())
        _name_precision(directory / "config.json", trainer.config.precision)
        return
    trainer.adapters.save(directory)
    if trainer.merges_adapters:
        policy.save_pretrained(directory, state_dict=trainer.adapters.merge())


def _name_precision(file: Path, precision: str) -> None:
    """Let a ``config.json`` name the type in which its policy acts, which an engine takes.

    transformers writes that of the first parameter, which is float32 in a divided policy.
    """
    config = json.loads(file.read_text())
    if config["dtype"] != precision:
        file.write_text(json.dumps(config | {"dtype": precision}, indent=2, sort_keys=True) + "\n")


def _gather_optimizer(trainer: LocalTrainer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the optimizer's file, together with the processes among which moments
    are divided.
    """
    from runners.training.sharded_policy import join_parts

    yield "generator", trainer.generator.get_state()
    for name, parameter in trainer.weights.trained.items():
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            yield f"{key}/{name}", join_parts(value)


def _load_optimizer(trainer: LocalTrainer, tensors: dict[str, torch.Tensor]) -> None:
    from runners.training.sharded_policy import take_part

    fused = trainer.optimizer.defaults["fused"]
    trainer.optimizer.state.clear()
    for label, value in tensors.items():
        key, _, name = label.partition("/")
        parameter = trainer.weights.trained[name]
        if key != "step":
            value = take_part(value, parameter)
        elif fused:  # AdamW keeps its step counter on the CPU unless it is fused
            value = value.to(parameter.device)
        trainer.optimizer.state[parameter][key] = value
