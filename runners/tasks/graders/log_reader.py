"""Read logs by a package's parser, in a process that has limits of its own.

The code under test decides what is in a log and how long it is, and a package's patterns can take
any time and memory on a long line: in the driver they would hold up every rollout.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

READ_S = 60.0
"""To read logs; importing a package takes up to 5 s of it."""
MEMORY = 4 << 30
"""Bytes of address space."""
REASON = 300
"""Characters kept of a reader's error."""


class UnreadableLogError(Exception):
    """A parser raised, or did not end within its limits; the text says which."""


def read_apart(module: str, request: Mapping[str, Any], *, deadline_s: float = READ_S) -> Any:
    """Return the result of ``module``, which calls ``answer``; ``request`` names files. Blocks.

    Raises UnreadableLogError.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", module],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableLogError(f"its parser did not end within {deadline_s:g} s") from error
    if done.returncode:
        reason = done.stderr[-REASON:].decode(errors="replace").strip()
        raise UnreadableLogError(reason or f"its parser ended with exit code {done.returncode}")
    return json.loads(done.stdout)


def answer(read: Callable[[dict[str, Any]], Any]) -> None:
    """Read the request of ``read_apart`` from stdin, and print the result as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.redirect_stdout(sys.stderr):  # what a package prints is no part of the result
        found = read(json.load(sys.stdin))
    print(json.dumps(found))


@contextlib.contextmanager
def log_file(log: bytes) -> Iterator[Path]:
    """Yield a file that holds a log as UTF-8, until the end of the block."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".log") as file:
        file.write(log.decode(errors="replace"))
        file.flush()
        yield Path(file.name)
