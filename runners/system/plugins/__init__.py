"""Names that the other districts may import."""

from __future__ import annotations

from runners.system.plugins.calls import (
    PluginFailedError,
    call_plugin,
    check_number,
    describe_failure,
    plugin_loop,
    run_beside,
)
from runners.system.plugins.loading import PluginError, load_plugin, load_shared

__all__ = [
    "PluginError",
    "PluginFailedError",
    "call_plugin",
    "check_number",
    "describe_failure",
    "load_plugin",
    "load_shared",
    "plugin_loop",
    "run_beside",
]
