"""A table that is made of the code when it is first asked for, then read from the user's cache.

What reads it imports nothing else: a shell waits for a TAB.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.cache import cache_root


def read_table(name: str, sources: Iterable[Path], render: Callable[[], str]) -> dict[str, Any]:
    """Return the JSON object that ``render`` writes; ``sources`` are the files it is made of, or
    folders of them.
    """
    file = cache_root() / "tables" / f"{name}-{_find_version(sources)}.json"
    with suppress(OSError, ValueError):
        return dict(json.loads(file.read_text("utf-8")))
    text = render()
    with suppress(OSError):  # a cache that cannot be written costs each TAB a second, no more
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(text, "utf-8")
        part.replace(file)
    return dict(json.loads(text))


def _find_version(sources: Iterable[Path]) -> str:
    """Return a checksum of files by their names and times."""
    files = sorted(file for source in sources for file in _walk(source))
    known = "".join(f"{file} {file.stat().st_mtime_ns}\n" for file in files)
    return f"{zlib.crc32(known.encode()):08x}"


def _walk(source: Path) -> Iterable[Path]:
    return (f for f in source.rglob("*") if f.suffix in (".py", ".yaml"))
