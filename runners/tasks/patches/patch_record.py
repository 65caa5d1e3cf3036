"""A patch in a rollout's record: text for people, exact bytes for grading it again."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from runners.tasks.contract import Patch
from runners.tasks.patches.diffs import read_paths
from runners.tasks.patches.protection import escape_path

BYTES, REFUSED, REFUSED_AS = "patch_base64", "patch_refused", "patch_refused_as"
"""Keys of a record's ``extra``; each is set only if the text alone would lose it."""
TOUCHED = "protected_touched"
"""Key of a record's ``extra``: the protected paths that the agent changed."""


def encode_patch_text(patch: Patch) -> str:
    """Return the diff as text; bytes that are not UTF-8 become U+FFFD."""
    return patch.diff.decode("utf-8", "replace")


def encode_patch_extra(patch: Patch) -> dict[str, str]:
    """Return the fields that the text lacks: the bytes of a diff that is not UTF-8 (of a Latin-1
    file, for example), and the reason why a patch is not graded.
    """
    extra: dict[str, str] = {}
    if encode_patch_text(patch).encode() != patch.diff:
        extra[BYTES] = base64.b64encode(patch.diff).decode()
    if patch.refused:
        extra |= {REFUSED: patch.refused, REFUSED_AS: patch.refused_as}
    return extra


def decode_patch(text: str, extra: Mapping[str, Any]) -> Patch:
    """Return the patch of a record, byte for byte."""
    diff = base64.b64decode(extra[BYTES]) if BYTES in extra else text.encode()
    return Patch(
        diff=diff,
        sha256=hashlib.sha256(diff).hexdigest(),
        files=tuple(sorted(map(escape_path, read_paths(diff.decode("utf-8", "replace")).all))),
        protected_touched=tuple(extra.get(TOUCHED, ())),
        refused=extra.get(REFUSED, ""),
        refused_as=extra.get(REFUSED_AS, ""),
    )
