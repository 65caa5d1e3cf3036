"""Names that the other districts may import."""

from __future__ import annotations

from runners.tasks.patches.denied_hosts import denied_hosts
from runners.tasks.patches.patch import capture_patch
from runners.tasks.patches.patch_record import (
    TOUCHED,
    decode_patch,
    encode_patch_extra,
    encode_patch_text,
)
from runners.tasks.patches.workspace_diff import diff_workspace

__all__ = [
    "TOUCHED",
    "capture_patch",
    "decode_patch",
    "denied_hosts",
    "diff_workspace",
    "encode_patch_extra",
    "encode_patch_text",
]
