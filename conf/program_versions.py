"""Choose an agent program and its version in one word: ``harness=claude_code@2.1.332``."""

from __future__ import annotations

import re

from conf.grammar import as_override
from conf.keys import choice_content, groups

_CHOICE = re.compile(r"harness=([a-z0-9_]+)@(\d[\w.+-]*)")
_WORD = re.compile(r"harness=([a-z0-9_]+)@(.*)")
_INSTALLED = re.compile(r"(?<!\bnode)(@|==)\d[\w.+-]*")
"""The version in a command that installs a package with npm or pip; node may come along with it."""


def split_version(line: str) -> tuple[str, str] | None:
    """Return the overrides that choose a program and its version; None if a line does not."""
    found = _CHOICE.fullmatch(line)
    if found is None or found[1] not in groups()["harness"]:
        return None
    name, version = found.groups()
    content = choice_content("harness", name)
    if "version" in content and "target" not in content:
        return f"harness={name}", as_override("harness.version", version)
    command = str(content.get("install"))
    if len(_INSTALLED.findall(command)) != 1:
        return None
    installed = _INSTALLED.sub(lambda match: match[1] + version, command)
    return f"harness={name}", as_override("harness.install", installed)


def find_installed_version(command: str | None) -> str | None:
    """Return the version that an installing command names; None if it names none, or several."""
    found = list(_INSTALLED.finditer(command or ""))
    return found[0][0].removeprefix(found[0][1]) if len(found) == 1 else None


def refuse_version(line: str) -> str | None:
    """Return the error of a program's choice with a version that is none, None for other lines."""
    found = _WORD.fullmatch(line)
    if found is None or found[1] not in groups()["harness"]:
        return None
    name, word = found.groups()
    if split_version(f"harness={name}@1.2.3") is None:
        return f"{line}: harness={name} has no version to choose; drop @{word}"
    return (
        f"{line}: {word!r} is no version; write its number, as in harness={name}@1.2.3: a program "
        "that changes by itself would change what is trained"
    )


def name_versions(overrides: list[str]) -> list[str]:
    """Replace a choice with a version by its two overrides."""
    return [each for line in overrides for each in split_version(line) or (line,)]
