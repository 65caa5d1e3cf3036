"""Read a fault plan from the user's own file, once, when the run is created."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

_KEYS = ("seed", "rules")


def load_fault_plan(faults: Mapping[str, Any], found: list[str]) -> dict[str, Any]:
    """Return the section ``faults`` with ``seed`` and ``rules`` from the file that it names.

    A section that has rules already is returned as it is: it comes from a stored configuration, and
    the file may have changed since. Errors are added to ``found``; pydantic checks the rules later.
    """
    section, path = dict(faults), faults.get("path")
    if section.get("rules") is not None or not isinstance(path, str):
        return section
    try:
        content = OmegaConf.to_container(OmegaConf.load(Path(path)), resolve=True)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        found.append(f"faults.path={path} cannot be read: {' '.join(str(error).split())}")
        return section
    if not isinstance(content, dict) or content.get("rules") is None:
        found.append(f"faults.path={path} has no rules: write them as conf/faults/chaos.yaml does")
        return section
    unknown = [str(key) for key in content if key not in (*_KEYS, "kind")]
    if unknown:
        found.append(f"faults.path={path} has {', '.join(unknown)}: a plan is a seed and rules")
    return section | {key: content.get(key) for key in _KEYS if section.get(key) is None}
