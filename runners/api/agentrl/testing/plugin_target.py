"""The plug-in that a test class names, as a run would load it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import JsonValue

from conf.sections.plugin import PluginConfig
from conf.targets import find_target, is_file, split_target
from runners.system.plugins import load_plugin


class PluginTests:
    """Base of the suites for plug-ins: the target and its options."""

    target: ClassVar[str] = ""
    """``FILE.py:Name`` (a relative file is below the directory of the test), or
    ``package.module:Name``, or the name of an installed plug-in.
    """
    options: ClassVar[Mapping[str, JsonValue]] = {}
    """Values of its options."""

    def find_target(self) -> str:
        """Return the target, with the path of its file from the directory of the test."""
        if not self.target:
            raise ValueError(f"{type(self).__name__}.target has to name the plug-in under test")
        if ":" not in self.target:
            return self.target
        place, name = split_target(self.target)
        if not is_file(place):
            return self.target
        return f"{Path(inspect.getfile(type(self))).parent / place}:{name}"

    def load(self, contract: type[Any], seam: str, key: str) -> Any:
        """Return the plug-in; raises PluginError, which names what is wrong with it."""
        return load_plugin(self.configure(seam), contract, key)

    def configure(self, seam: str) -> PluginConfig:
        """Return the plug-in's configuration."""
        target = find_target(self.find_target(), seam)
        return PluginConfig(target=target, options=dict(self.options))
