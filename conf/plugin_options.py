"""Keys that only their owner knows: a plug-in's options and parts, a program's variables, the names
of its sub-agents and servers, what a cluster calls its labels and devices, and those that installed
packages offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType

from conf.keys import SEAMS, groups, lookup
from conf.schema_defaults import DATA
from conf.targets import plugin_names


def name_targets(overrides: list[str]) -> list[str]:
    """Replace a group's choice that is a target, or that an installed plug-in offers, by ``custom``
    with this target.
    """
    lines: list[str] = []
    for line in overrides:
        group, _, name = line.partition("=")
        offered = {}
        if group in SEAMS and name not in groups()[group]:
            offered = {name: name} if ":" in name else plugin_names(SEAMS[group])
        lines += (
            [f"{group}=custom", f"{group}.target={offered[name]}"] if name in offered else [line]
        )
    return lines


def is_option(key: str, tree: Mapping[str, Any]) -> bool:
    """Return whether a key is a plug-in's own option, or in a mapping of an agent program whose
    names the user chooses.
    """
    for mapping in DATA:
        beside = "target" if mapping == "options" else mapping
        section, found, name = key.partition(f".{mapping}")
        if found and (not name or name[0] == ".") and lookup(tree, f"{section}.{beside}")[0]:
            return True
    return False


def open_option(override: Override, tree: Mapping[str, Any]) -> Override:
    """Let a plug-in's option, which the YAML files do not have, be added as well as changed."""
    if not is_option(override.key_or_group, tree) or override.is_delete():
        return override
    return replace(override, type=OverrideType.FORCE_ADD)
