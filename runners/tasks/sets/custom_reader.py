"""Rows of a plug-in that reads a dataset in a form of its own (``task.format``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from conf.sections.plugin import PluginConfig
from runners.system.plugins import PluginFailedError, describe_failure, load_plugin
from runners.tasks.section_keys import name_key
from runners.tasks.sets.dataset_files import DatasetError


class DatasetReader(Protocol):
    """Reads a dataset; the same path yields the same rows in the same order."""

    def __call__(self, path: Path) -> Iterable[Mapping[str, Any]]:
        """Yield the rows of ``task.path``, each in one of the schemas of docs/tasks.md."""
        ...


def read_with_plugin(
    plugin: PluginConfig, path: Path
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield the rows of a plug-in, each with its number, or its problem as text.

    Raises DatasetError and PluginError.
    """
    reader: DatasetReader = load_plugin(plugin, DatasetReader, name_key("format"))
    number = 0
    try:
        for number, row in enumerate(reader(path), start=1):
            is_row = isinstance(row, Mapping)
            problem = (
                f"{name_key('format')} yields rows that are mappings, not {type(row).__name__}"
            )
            yield f"{path}, row {number}", dict(row) if is_row else problem
    except GeneratorExit:
        raise
    except (Exception, SystemExit) as error:
        failure: PluginFailedError = describe_failure(
            f"{name_key('format')}={plugin.target}", error
        )
        raise DatasetError(f"{path}, after row {number}: {failure}") from error
