"""Find whether this user has ids of his own for the users of a container (``/etc/subuid``)."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterable
from pathlib import Path

FILES = {"/etc/subuid": (), "/etc/subgid": ("-g",)}
"""Files with ranges of ids, and the option by which ``getsubids`` prints the same."""
IDS = 65536
"""Ids that Apptainer wants; it ignores a range with fewer."""
LOOK_UP_S = 30.0


def find_missing_ranges() -> list[str]:
    """Return the files that give this user too few ids; blocks."""
    names = (pwd.getpwuid(os.getuid()).pw_name, str(os.getuid()))
    return [
        file
        for file, option in FILES.items()
        if not has_range(_read(file), names) and not has_range(_look_up(names[0], option), names)
    ]


def has_range(lines: Iterable[str], names: tuple[str, ...]) -> bool:
    """Return whether a line, ``NAME:FIRST:COUNT``, gives one of the names of a user enough ids."""
    for line in lines:
        name, _, rest = line.strip().partition(":")
        count = rest.partition(":")[2]
        if name in names and count.isdigit() and int(count) >= IDS:
            return True
    return False


def _read(file: str) -> list[str]:
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []


def _look_up(name: str, option: tuple[str, ...]) -> list[str]:
    """Return what a directory service knows, as lines of the file."""
    argv = ["getsubids", *option, name]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LOOK_UP_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    # 0: NAME FIRST COUNT
    return [":".join(line.split()[1:]) for line in done.stdout.splitlines()]
