"""Parse overrides in Hydra's grammar, expand sweeps, and write values as overrides.

Sweeps are expanded before anything is composed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException

from conf.errors import ConfigError
from conf.url_secrets import hide_secrets


def parse(lines: Iterable[str]) -> tuple[list[Override], list[str]]:
    """Return the parsed overrides, and a fault for each line that Hydra's grammar refuses."""
    parser = OverridesParser.create()
    parsed: list[Override] = []
    faults: list[str] = []
    for line in lines:
        key, equals, value = line.partition("=")
        shown = hide_secrets(line)
        if not key.strip("+~ ") or not (equals or line.startswith("~")):
            faults.append(f"{shown!r} is not KEY=VALUE: write for example run.steps=10")
        elif equals and not value.strip():
            faults.append(f"{line} has no value: write {key}=null for none")
        else:
            try:
                parsed.append(parser.parse_override(line))
            except HydraException as error:
                reason = str(error).splitlines()[0]
                faults.append(
                    f"{shown} cannot be read ({reason}): quote a value that contains special "
                    f"characters, e.g. '{key}=\"…\"' in the shell"
                )
    return parsed, faults


def expand_sweeps(lines: list[str]) -> list[list[str]]:
    """Return one list of overrides per run: the product of all sweeps, the last one varying
    fastest.

    ``a=1,2``, ``a=choice(1,2)`` and ``a=range(1,3)`` are sweeps; ``a=[1,2]`` and ``a='1,2'`` are
    values. Lines that cannot be parsed are kept: ``compose`` reports them together with all other
    faults. Raises ConfigError for sweeps that cannot be enumerated.

    Example: ``expand_sweeps(["a=1,2", "b=3"])`` is ``[["a=1", "b=3"], ["a=2", "b=3"]]``.
    """
    faults: list[str] = []
    axes = [_expand_line(line, faults) for line in lines]
    if faults:
        raise ConfigError(faults)
    return [list(run) for run in itertools.product(*axes)]


def _expand_line(line: str, faults: list[str]) -> list[str]:
    parsed, unreadable = parse([line])
    if unreadable or not parsed[0].is_sweep_override():
        return [line]
    override = parsed[0]
    if override.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
        faults.append(f"{line} cannot be enumerated: list the values, {override.key_or_group}=a,b")
        return []
    key = override.get_key_element()
    try:
        values = [f"{key}={value}" for value in override.sweep_string_iterator()]
    except HydraException as error:
        faults.append(f"{line}: {error}")
        return []
    if not values:
        faults.append(f"{line} is an empty sweep: check its bounds")
    return values


def swept_keys(lines: list[str]) -> list[str]:
    """Return the keys that have a sweep, in the order of ``lines``."""
    return [o.key_or_group for o in parse(lines)[0] if o.is_sweep_override()]


def as_override(key: str, value: Any) -> str:
    """Return the override that sets ``key`` to a JSON value, with all characters escaped."""
    return f"{key}={_literal(value)}"


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ",".join(_literal(item) for item in value) + "]"
    if isinstance(value, dict):
        # Hydra's grammar has no quoted keys; the keys of our sections need no quotes.
        return "{" + ",".join(f"{key}:{_literal(item)}" for key, item in value.items()) + "}"
    return as_text(str(value))


def as_text(value: str) -> str:
    """Return a text as a quoted value of an override, with all characters escaped."""
    # OmegaConf reads "${" as an interpolation unless it is escaped; backslashes before it must be
    # doubled too, or they would escape our escape.
    escaped = re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return QuotedString(escaped, quote=Quote.single).with_quotes()
