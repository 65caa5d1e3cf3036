"""A patch as a rollout's record keeps it: text for people, exact bytes for grading it again."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from runners.tasks.contract import Patch

BYTES, REFUSED = "patch_base64", "patch_refused"
"""Keys of a record's ``extra``; each is there only where the text does not say it."""


def encode_patch_text(patch: Patch) -> str:
    """Return the diff as text; bytes that are no UTF-8 show as U+FFFD."""
    return patch.diff.decode("utf-8", "replace")


def encode_patch_extra(patch: Patch) -> dict[str, str]:
    """Return what the text does not say: a diff that is no UTF-8 (a changed Latin-1 file has such
    lines), and why a patch is not graded.
    """
    extra: dict[str, str] = {}
    if encode_patch_text(patch).encode() != patch.diff:
        extra[BYTES] = base64.b64encode(patch.diff).decode()
    if patch.refused:
        extra[REFUSED] = patch.refused
    return extra


def decode_patch(text: str, extra: Mapping[str, Any]) -> Patch:
    """Return the patch of a record, byte for byte; it names no files (its diff does)."""
    diff = base64.b64decode(extra[BYTES]) if BYTES in extra else text.encode()
    return Patch(
        diff=diff,
        sha256=hashlib.sha256(diff).hexdigest(),
        files=(),
        tampered=tuple(extra.get("tampered", ())),
        refused=extra.get(REFUSED, ""),
    )
