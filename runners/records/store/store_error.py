"""Turns errors of SQLite and the file system into ``StoreError``; the only place that does."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import AgentrlError, ExitCode


class StoreError(AgentrlError):
    """The run's store failed, or refused what was asked of it.

    Exit codes: 2 if another run directory has to be chosen, 4 if the disk failed under a run (which
    can be resumed), 5 if the stored data is refused.
    """

    exit_code = ExitCode.DATA_REFUSED

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.DATA_REFUSED) -> None:
        self.exit_code = exit_code
        super().__init__(message)


_FULL = "the disk is full at {path}: free some space, then resume the run; what is stored is intact"
_TOO_LARGE = "{path} may not grow (file size limit): raise `ulimit -f`, then resume the run"
_READ_ONLY = "{path} cannot be written: make it writable for this user or choose another run.dir"
_DENIED = "{path} cannot be opened: check that the directory exists and that this user may use it"
_BUSY = "{path} stayed locked: another process holds the run; end it, then retry"
_CORRUPT = "{path} is damaged ({error}): restore the run directory from a copy, or start a new run"
_IO = "the disk failed at {path} ({error}): check the disk, then resume the run"

_GONE = ExitCode.SERVICE_GONE
_BY_ERRNO: dict[int, tuple[str, ExitCode]] = {
    errno.ENOSPC: (_FULL, _GONE),
    errno.EDQUOT: (_FULL, _GONE),
    errno.EFBIG: (_TOO_LARGE, _GONE),
    errno.EROFS: (_READ_ONLY, ExitCode.USAGE),
    errno.EACCES: (_READ_ONLY, ExitCode.USAGE),
    errno.EPERM: (_READ_ONLY, ExitCode.USAGE),
}
_BY_SQLITE: dict[int, tuple[str, ExitCode]] = {
    sqlite3.SQLITE_FULL: (_FULL, _GONE),
    sqlite3.SQLITE_IOERR_SHMSIZE: (_FULL, _GONE),  # no room for the index of its log
    sqlite3.SQLITE_READONLY: (_READ_ONLY, ExitCode.USAGE),
    sqlite3.SQLITE_PERM: (_READ_ONLY, ExitCode.USAGE),
    sqlite3.SQLITE_CANTOPEN: (_DENIED, ExitCode.USAGE),
    sqlite3.SQLITE_BUSY: (_BUSY, _GONE),
    sqlite3.SQLITE_LOCKED: (_BUSY, _GONE),
    sqlite3.SQLITE_CORRUPT: (_CORRUPT, ExitCode.DATA_REFUSED),
    sqlite3.SQLITE_NOTADB: (_CORRUPT, ExitCode.DATA_REFUSED),
    sqlite3.SQLITE_CONSTRAINT: (
        "{path} already holds this record ({error})",
        ExitCode.DATA_REFUSED,
    ),
}


@contextmanager
def raise_store_errors(path: Path) -> Iterator[None]:
    """Raise an OSError of the block, which writes ``path``, as a StoreError."""
    try:
        yield
    except OSError as error:
        raise to_store_error(error, path) from error


def to_store_error(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    """Turn a foreign error at ``path`` into ours."""
    if isinstance(error, OSError):
        text, code = _BY_ERRNO.get(error.errno or 0, (_IO, _GONE))
    else:
        exact = getattr(error, "sqlite_errorcode", 0)
        primary = exact & 0xFF  # the low byte; the rest refines it
        text, code = _BY_SQLITE.get(exact) or _BY_SQLITE.get(primary, (_IO, _GONE))
    return StoreError(text.format(path=path, error=error), code)
