"""Find a job's run directory, and read its configuration, in any of slime's processes."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from conf.compose import from_json
from conf.errors import ConfigError
from conf.schema import Config

VARIABLE = "AGENTRL_RUN_DIR"
CONFIG = "config.json"


def find_run_dir(args: Any) -> Path:
    """Return the run's directory; raises ConfigError if nothing names it."""
    named = getattr(args, "agentrl_run_dir", None) or os.environ.get(VARIABLE)
    if not named:
        raise ConfigError(
            [
                f"slime does not know the run's directory: set {VARIABLE} in the job's "
                "environment, or agentrl_run_dir in the file of --custom-config-path"
            ]
        )
    return Path(named)


@cache
def read_config(run_dir: Path) -> Config:
    """Return the configuration in ``run_dir``; raises ConfigError."""
    file = run_dir / CONFIG
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file} cannot be read: {error}"]) from error
    return from_json(text, source=str(file))
