"""The starting policy of ``model=tiny``, which comes with agentrl, and the copy that a run keeps.

A run keeps its own copy, so that another version of agentrl, or another machine, continues and
decodes it with the weights and the vocabulary that it began with.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.cache import cache_root
from conf.errors import AgentrlError, ExitCode
from conf.sections.model import TinyModelConfig

SHIPPED = Path(__file__).parent / "tiny_policy"
"""Its files; ``python -m tests.starting_policy`` makes them again."""
SHA256 = "761a7acf05dcf9c34ca65e6ee9a536de5e9dd2441ca4a7186209b8434f4fe6ba"
"""Digest of its files (``hash_files``)."""
KEPT = "policy"
"""A run's folder with its copy."""


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
