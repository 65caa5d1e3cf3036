"""A fault plan in a file of the user's own: read once, when the run is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

_KEYS = ("seed", "rules")


def with_plan(faults: Mapping[str, Any], found: list[str]) -> dict[str, Any]:
    """Return the section ``faults`` with ``seed`` and ``rules`` of the file it names, unless it has
    rules already (a stored configuration does, and the file may have changed since).

    What makes the file no plan at all is added to ``found``; its rules are not judged here.
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
