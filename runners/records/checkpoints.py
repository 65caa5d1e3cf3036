"""The policies of a run on disk: the starting one, and its checkpoints.

``model=tiny`` starts from a policy that comes with agentrl. A run keeps its own copy, so that
another version of agentrl, or another machine, continues and decodes it with the weights and the
vocabulary that it began with.

``<run>/checkpoints/step-000012/`` holds the policy *after* twelve steps. Invariant: a directory of
that name is complete. ``best`` beside it is a link to the one with the best evaluation.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.cache import cache_root
from conf.errors import AgentrlError, ExitCode

if TYPE_CHECKING:  # a server of the policy needs no configuration
    from conf.sections.model import TinyModelConfig
import os
from contextlib import suppress
from dataclasses import dataclass

SHIPPED = Path(__file__).parent / "tiny_policy"
"""Its files; ``python -m tests.starting_policy`` makes them again."""
SHA256 = "761a7acf05dcf9c34ca65e6ee9a536de5e9dd2441ca4a7186209b8434f4fe6ba"
"""Digest of its files (``hash_files``)."""
KEPT = "policy"
"""A run's folder with its copy."""
TOKENIZER = "tokenizer"
"""A run's folder with its copy of another policy's tokenizer."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"),
)
"""Files that texts are read and written with."""


class StartingPolicyError(AgentrlError):
    """The starting policy is damaged, or a run has lost its own."""

    exit_code = ExitCode.DATA_REFUSED


def find_shipped_policy() -> Path:
    """Return the directory of the starting policy: weights (bfloat16), config.json, tokenizer.

    Raises StartingPolicyError unless its files are those that were shipped.
    """
    check_files(SHIPPED)
    return SHIPPED


def check_files(directory: Path) -> None:
    """Raise StartingPolicyError unless a directory has exactly the files that were shipped."""
    if (found := hash_files(directory)) != SHA256:
        raise StartingPolicyError(
            f"the starting policy in {directory} is damaged (SHA-256 {found[:16]}…, not "
            f"{SHA256[:16]}…): install agentrl again, or set model.path to a policy of your own"
        )


def hash_files(directory: Path) -> str:
    """Return the SHA-256 of ``sha256sum``'s lines of all files, sorted by their names."""
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(directory.glob("*"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def keep_policy(run_dir: Path, config: Mapping[str, Any], *, began: bool) -> Path:
    """Return the starting policy of a run; copy the shipped one to its directory if it has none.

    ``began``: it has rollouts already. Then its policy is the one that made them. Raises
    StartingPolicyError if that is gone.
    """
    kept = run_dir / KEPT
    if kept.is_dir():
        return kept
    if began:
        earlier = find_run_policy(run_dir, config)
        if earlier is None:
            raise StartingPolicyError(
                f"{run_dir} was begun by a version of agentrl that made its starting policy and "
                "cached it: it has no checkpoint, and the cache has that policy no more; start a "
                "new run"
            )
        return earlier
    shipped, partial = find_shipped_policy(), run_dir / f".{KEPT}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed here
        shutil.copytree(shipped, partial)
        partial.rename(kept)
    except OSError as error:
        raise StartingPolicyError(
            f"the starting policy cannot be kept in {kept}: {error}"
        ) from error
    return kept


def keep_tokenizer(run_dir: Path, directory: Path) -> None:
    """Copy a tokenizer into the run that samples with it, so that a copy of the run has its words
    on any machine; raises StartingPolicyError.
    """
    kept = run_dir / TOKENIZER
    if kept.is_dir() or directory.resolve().is_relative_to(run_dir.resolve()):
        return
    partial = run_dir / f".{TOKENIZER}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed here
        partial.mkdir()
        for file in filter(Path.is_file, map(directory.joinpath, TOKENIZER_FILES)):
            shutil.copyfile(file, partial / file.name)
        partial.rename(kept)
    except OSError as error:
        raise StartingPolicyError(f"the tokenizer cannot be kept in {kept}: {error}") from error


def find_given_files(model: TinyModelConfig) -> tuple[Path | None, Path | None]:
    """Return the directories of weights and tokenizer that a configuration names; a checkpoint in
    ``model.path`` has its tokenizer beside it.
    """
    beside = model.path if model.path and (model.path / "tokenizer.json").is_file() else None
    return model.path, model.tokenizer or beside


def find_run_policy(run_dir: Path, config: Mapping[str, Any]) -> Path | None:
    """Return a directory with the tokenizer of a run of ``model=tiny``, and with the weights that
    it began with as far as they are there; None if it is gone.

    Agentrl 0.1 made the policy on the machine and cached it; if that is gone, the newest checkpoint
    has its vocabulary and its shape.
    """
    checkpoints = sorted(run_dir.glob("checkpoints/step-*/"), reverse=True)
    candidates = [run_dir / KEPT, _find_cached(config), *checkpoints]
    return next((path for path in candidates if (path / "tokenizer.json").is_file()), None)


def _find_cached(config: Mapping[str, Any]) -> Path:
    """Return the directory in which agentrl 0.1 cached the policy of a run."""
    model = config.get("model", {})
    scenario = config.get("scenario", {}).get("kind")
    inputs = {
        **{"vocabulary": 1000, "demonstrations": 2000, "copying_steps": 120, "seed": 0},
        **{"right": 0.27, "elsewhere": 0.05, "verify": 0.2, "told": 0.6, "version": 3},
        "scenario": scenario,
        "warmup_steps": model.get("warmup_steps", 400 if scenario == "mixed" else 300),
        "max_context_tokens": model.get("max_context_tokens"),
        "renderer": model.get("renderer"),
    }
    name = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
    return Path(model.get("cache_dir") or cache_root()) / "tiny" / name


CHECKPOINTS = "checkpoints"
"""Directory of a run's checkpoints, in its run directory."""
BEST = "best"
"""Link to the checkpoint with the best evaluation, among the checkpoints."""
OPTIMIZER = "optimizer.safetensors"
"""File of the optimizer's state, in a checkpoint."""
STATE = "trainer_state.json"
"""File of the trainer's state and its step's metrics, in a checkpoint."""
ADAPTER = "adapter"
"""Directory of the LoRA adapters in a checkpoint."""
PARTIAL = ".partial"
"""End of the name of a directory that is being written, or deleted."""


class CheckpointError(AgentrlError):
    """A checkpoint cannot be written (exit code 4: the run can be resumed) or read (5)."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.DATA_REFUSED) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    """Training steps done: the weight version."""

    def state(self) -> dict[str, Any]:
        """Return the ``state`` that ``save`` was given; raises CheckpointError."""
        state: dict[str, Any] = self._document()["state"]
        return state

    def run_id(self) -> str | None:
        """Return the id of the run that wrote it, None if it is older than ids of runs; raises
        CheckpointError.
        """
        run_id: str | None = self._document().get("run")
        return run_id

    def _document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.path / STATE).read_text())
            document["state"]["metrics"]  # the first thing that a resumed run reads
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"checkpoint {self.path} is damaged ({error}): restore it from a copy, or "
                "remove it and add --rewind"
            ) from error
        return document


def find_best(root: Path, rates: Mapping[int, float]) -> Checkpoint | None:
    """Return the checkpoint with the highest held-out solve rate, of equals the earliest.

    ``rates``: by step. None if no step with a rate has a checkpoint; the starting policy has none.
    """
    rated = [checkpoint for checkpoint in find_complete(root) if checkpoint.step in rates]
    return max(rated, key=lambda checkpoint: rates[checkpoint.step], default=None)


def directory_name(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step:06d}"


def directory(root: Path, step: int) -> Path:
    """Return the directory of a step's checkpoint below ``root``."""
    return root / directory_name(step)


def find_complete(root: Path) -> list[Checkpoint]:
    """Return the complete checkpoints below ``root``, the oldest first."""
    if not root.is_dir():
        return []
    return sorted(
        (
            Checkpoint(path, int(path.name.removeprefix("step-")))
            for path in root.glob("step-*")
            if path.suffix != PARTIAL
        ),
        key=lambda checkpoint: checkpoint.step,
    )


def find_latest(root: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint below ``root``, or None."""
    found = find_complete(root)
    return found[-1] if found else None


def remove_old(root: Path, *, keep: int, best: Checkpoint | None) -> None:
    """Delete all checkpoints but the newest ``keep`` and the ``best``."""
    for old in find_complete(root)[:-keep]:
        if old != best:
            with suppress(OSError):  # a checkpoint too many costs disk space, no more
                remove(old.path)


def link_best(root: Path, best: Checkpoint) -> None:
    """Make ``root/best`` a link to a checkpoint, in one step; raises OSError."""
    partial = root / (BEST + PARTIAL)
    partial.unlink(missing_ok=True)  # of a process that was killed
    partial.symlink_to(best.path.name)
    partial.replace(root / BEST)
    flush(root)


def remove(place: Path) -> None:
    """Delete a checkpoint so that at no instant a part of it looks like a whole one."""
    shutil.rmtree(place.rename(place.with_name(f"{place.name}.dropped{PARTIAL}")))


def flush(path: Path) -> None:
    """Write a file, or the names in a directory, to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
