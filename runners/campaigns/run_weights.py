"""Find the weights of a run, where ``model.path`` names its directory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.schema import Config
from runners.records.checkpoints import BEST, CHECKPOINTS, find_latest

EXPORTED = "weights"
"""Directory of exported weights in a job's directory; ``export.sh`` writes them."""


def use_run_weights(config: Config) -> Config:
    """Return the configuration with a run's weights in place of its directory, in ``model.path``
    and ``model.tokenizer``: its best checkpoint, or the newest if none was evaluated; of a job on a
    cluster the newest that were exported.

    Raises ConfigError if the run has none.
    """
    changed: dict[str, Any] = {}
    for key in ("path", "tokenizer"):
        path = getattr(config.model, key)
        launched = None if path is None else _launched_as(path)
        if launched is not None:
            changed[key] = _find_checkpoint(path) if launched == "local" else _find_export(path)
    if not changed:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update=changed)})


def _launched_as(directory: Path) -> str | None:
    """Return the ``launch.kind`` of a run's ``config.json``; a checkpoint has such a file, too."""
    try:
        content = json.loads((directory / "config.json").read_text("utf-8"))
        return str(content["launch"]["kind"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _find_checkpoint(run_dir: Path) -> Path:
    root = run_dir / CHECKPOINTS
    if (root / BEST).is_dir():
        return (root / BEST).resolve()
    newest = find_latest(root)
    if newest is None:
        raise ConfigError(
            f"model.path={run_dir} is a run without a checkpoint, which each training step "
            f"writes: continue it with --resume {run_dir}, or choose another"
        )
    return newest.path


def _find_export(run_dir: Path) -> Path:
    found = {
        int(match[1]): path
        for path in (run_dir / EXPORTED).glob("*-step-*")
        if (match := re.search(r"-step-(\d+)$", path.name)) and (path / "config.json").is_file()
    }
    if not found:
        raise ConfigError(
            f"model.path={run_dir} is a job that has exported no weights: run `bash "
            f"{run_dir / 'launch' / 'export.sh'} [STEP]` on a node with slime, then this again"
        )
    return found[max(found)]
