"""Registers the export formats, one module each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conf.sections.plugin import PluginConfig
from conf.targets import find_target, plugin_names
from runners.observe.export import jsonl, sft
from runners.observe.export.atif import write_atif
from runners.observe.export.contract import Exporter, ExporterPlugin
from runners.observe.export.html import write_html
from runners.observe.export.parquet import write_parquet
from runners.observe.export.slime import write_slime
from runners.system.plugins import load_plugin

FORMATS: dict[str, Exporter] = {
    "jsonl": jsonl.write_jsonl,
    "atif": write_atif,
    "parquet": write_parquet,
    "slime": write_slime,
    "sft": sft.write_sft,
    "html": write_html,
}
"""Each writes files of its own names into one directory."""
VALIDATORS: dict[str, Callable[[Path], list[str]]] = {
    "jsonl": jsonl.validate,
    "sft": sft.validate,
}
"""Each reads a file of its format again, and returns what is wrong with it."""


def find_exporter(name: str) -> Exporter:
    """Return the exporter of a format, of an installed plug-in's name, or of a target.

    Raises PluginError, and KeyError for a name that nobody offers.
    """
    if name in FORMATS:
        return FORMATS[name]
    if ":" not in name and name not in plugin_names("exporters"):
        raise KeyError(name)
    plugin = PluginConfig(target=find_target(name, "exporters"))
    exporter: Exporter = load_plugin(plugin, ExporterPlugin, "--format")
    return exporter


def name_folder(name: str) -> str:
    """Return the name of a format without the place of its code."""
    return name.rpartition(":")[2]
