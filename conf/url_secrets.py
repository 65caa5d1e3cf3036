"""Hide the parts of URLs that may be secrets, for messages that repeat what was given."""

from __future__ import annotations

import re

_USER = re.compile(r"(?<=//)\S+(?=@)|[^\s/@=:]+:(?!//)\S+(?=@)")
_QUERY = re.compile(r"(//[^?#\s]*[?#])\S+")


def hide_secrets(text: str) -> str:
    """Return a text with ``***`` for users, passwords, queries and fragments of URLs.

    >>> hide_secrets("engine.url=http://me:pass@host/v1?key=1")
    'engine.url=http://***@host/v1?***'
    """
    return _QUERY.sub(r"\1***", _USER.sub("***", text))
