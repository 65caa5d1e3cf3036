"""A user's secret in a file: made at its first use, the same from then on."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

SHORTEST = 20
"""Characters; a file with fewer was not written by ``load_secret``."""


def load_secret(path: Path) -> str:
    """Return the secret in a file, printable ASCII that only its user may read.

    Of several processes that make it at once one wins, and all return the winner's; the file is
    complete or absent. Raises OSError, and ValueError if what is there is no secret.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 600
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_urlsafe(32))
            try:
                os.link(name, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links, on which the last one wins
                Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    secret = path.read_text("ascii").strip()
    if len(secret) < SHORTEST or path.stat().st_mode & 0o077:
        raise ValueError("it is no secret: delete it, then retry")
    return secret
