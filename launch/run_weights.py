"""Find the exported weights of a job on a cluster, where ``model.path`` names its directory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.schema import Config

WEIGHTS = "weights"
"""Directory of exported weights in a job's directory; ``export.sh`` writes them."""


def use_run_weights(config: Config) -> Config:
    """Return the configuration with the newest exported weights in place of the directory of a job
    in ``model.path`` or ``model.tokenizer``; raises ConfigError if the job has exported none.
    """
    changed: dict[str, Any] = {}
    for key in ("path", "tokenizer"):
        path = getattr(config.model, key)
        if path is not None and _is_job(path):
            changed[key] = _find_newest(path)
    if not changed:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update=changed)})


def _is_job(directory: Path) -> bool:
    """Return whether ``config.json`` there is a job's; a checkpoint has such a file, too."""
    try:
        content = json.loads((directory / "config.json").read_text("utf-8"))
        return bool(content["launch"]["kind"] != "local")
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _find_newest(run_dir: Path) -> Path:
    found = {
        int(match[1]): path
        for path in (run_dir / WEIGHTS).glob("*-step-*")
        if (match := re.search(r"-step-(\d+)$", path.name)) and (path / "config.json").is_file()
    }
    if not found:
        raise ConfigError(
            f"model.path={run_dir} is a job that has exported no weights: run `bash "
            f"{run_dir / 'launch' / 'export.sh'} [STEP]` on a node with slime, then this again"
        )
    return found[max(found)]
