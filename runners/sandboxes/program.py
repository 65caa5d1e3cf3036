"""Compile our programs that run inside sandboxes once on the host, not at every start.

A sandbox cannot keep a compiled copy itself: its mounts are read-only and its workspace is new.
"""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path


def compile_program(source: Path) -> Path:
    """Return a ``.pyc`` of a source file, or the source itself where none can be written.

    Either can be given to ``python`` as a script, or imported under the name it is mounted at.
    """
    tag = importlib.util.cache_from_source(str(source))
    target = Path(tag).with_suffix(".inside.pyc")
    try:
        if not target.exists() or target.stat().st_mtime <= source.stat().st_mtime:
            # dfile: tracebacks inside name the file alone, not where agentrl is on the host.
            py_compile.compile(str(source), str(target), dfile=source.name, doraise=True)
    except OSError:
        return source
    return target


def find_source(program: Path) -> Path | None:
    """Return the source of a file that ``compile_program`` made, None of another file.

    A machine elsewhere may have another version of Python, which cannot read the compiled one.
    """
    if not program.name.endswith(".inside.pyc"):
        return None
    plain = program.with_name(program.name.removesuffix(".inside.pyc") + ".pyc")
    return Path(importlib.util.source_from_cache(str(plain)))
