"""The user's own folder of choices (``--config-dir``), beside the built-in YAML files.

``DIR/reward/mine.yaml`` is the choice ``reward=mine``. A stored configuration does not need the
folder any more: it has all values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from conf.errors import ConfigError
from conf.keys import groups, set_config_dir
from conf.suggestions import suggest


def use_config_dir(directory: Path | None) -> None:
    """Take choices from a folder in this process, from now on.

    Raises ConfigError for a folder or a file that cannot be meant.
    """
    set_config_dir(None)
    if directory is None:
        return
    if faults := list(_find_faults(directory, groups())):
        raise ConfigError(faults)
    set_config_dir(directory.absolute())


def _find_faults(directory: Path, known: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    if not directory.is_dir():
        yield f"--config-dir={directory} is no directory"
        return
    files = sorted(directory.glob("*/*.yaml"))
    if not any(file.parent.name in known for file in files):
        yield (
            f"--config-dir={directory} has no choice: make GROUP/CHOICE.yaml in it (groups: "
            f"{', '.join(known)})"
        )
    for file in files:
        group = file.parent.name
        if group not in known:
            if hint := suggest(group, known, "did you mean {}?"):
                yield f"{file}: {group} is not a group: {hint}"
        elif file.stem in known[group]:
            yield f"{file}: {group}={file.stem} is built in: give it another name"
        elif fault := _find_fault(file):
            yield f"{file}: {fault}"


def _find_fault(file: Path) -> str:
    # Not for a command without such a folder, or a TAB.
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        content = OmegaConf.load(file)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        return f"cannot be read: {' '.join(str(error).split())}"
    if not isinstance(content, DictConfig) or not isinstance(content.get("kind"), str):
        return "has no kind: begin with that of a built-in choice, or `kind: custom`"
    return ""
