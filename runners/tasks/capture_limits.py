"""The limits of a change that is captured, and the refusal of one that is beyond them.

They hold before the work that they bound begins, so an agent that leaves more costs nobody but
itself: its patch is refused, which is the agent's own outcome with reward 0.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from conf.sections.rollout import CaptureConfig
from runners.records.outcome import OutcomeCode
from runners.tasks.contract import Patch

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Sizes beyond which a change is refused; see ``conf/sections/rollout.py``."""

    patch_bytes: int = MB
    patch_files: int = 1000
    workspace_bytes: int = 2048 * MB
    """On the disk: a sparse file counts with what it takes there."""
    workspace_files: int = 50_000
    """Files and directories beyond the repository's own."""

    @classmethod
    def of(cls, config: CaptureConfig) -> CaptureLimits:
        """Return the limits that a configuration names."""
        return cls(
            patch_bytes=int(config.patch_mb * MB),
            workspace_bytes=config.workspace_mb * MB,
            workspace_files=config.workspace_files,
        )


DEFAULT_LIMITS = CaptureLimits()
FILE_LIMIT = 8 * MB
"""Bytes; a larger changed file is refused before git reads it."""
CHANGED_LIMIT = 64 * MB
"""Bytes of all changed files together, which git reads and copies."""
DEPTH_LIMIT = 200
"""Levels of directories. Git's own walk recurses, and npm's deepest packages have some forty."""
PATH_LIMIT = 3000
"""Bytes of a path below the workspace. Linux takes 4096, and the workspace has a path too."""


class RefusedError(Exception):
    """A change is not graded, through the agent's fault."""

    def __init__(self, code: OutcomeCode, reason: str) -> None:
        self.code = code
        super().__init__(reason)


def workspace_error(reason: str) -> RefusedError:
    """Return the refusal of a workspace that is too large to be read."""
    return RefusedError(OutcomeCode.POLICY_OVERSIZED_WORKSPACE, reason)


def patch_error(reason: str) -> RefusedError:
    """Return the refusal of a change that is too large to be graded."""
    return RefusedError(OutcomeCode.POLICY_OVERSIZED_PATCH, reason)


def unreadable_error(reason: str) -> RefusedError:
    """Return the refusal of a workspace that cannot be read, for the sake of what is in it."""
    return RefusedError(OutcomeCode.POLICY_UNREADABLE_WORKSPACE, reason)


def make_refused_patch(
    reason: str,
    touched: tuple[str, ...] = (),
    *,
    code: OutcomeCode = OutcomeCode.POLICY_OVERSIZED_PATCH,
) -> Patch:
    """Return the empty patch of a change that is not graded; ``code``: its attempt's outcome."""
    empty = hashlib.sha256(b"").hexdigest()
    return Patch(
        diff=b"",
        sha256=empty,
        files=(),
        protected_touched=touched,
        refused=reason,
        refused_as=code.value,
    )
