"""Tell from a task alone whether sandboxes of a configuration can run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conf.sections.sandbox import CustomSandboxConfig, LocalSandboxConfig, SandboxConfig
from runners.tasks.contract import HarborVerifier, Task
from runners.tasks.harbor.dockerfile import ImageOnlyError
from runners.tasks.harbor.readiness import check_readiness
from runners.tasks.section_keys import name_key

State = Literal["ready", "needs image", "refused"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Answer of ``find_readiness``."""

    state: State
    reason: str = ""
    """The obstacle, and the fix."""


READY = Readiness("ready")


def find_readiness(task: Task, sandbox: SandboxConfig) -> Readiness:
    """Return whether a task can be run in such sandboxes."""
    if isinstance(task.grading, HarborVerifier):
        try:
            check_readiness(task, sandbox)
        except ImageOnlyError as error:
            return Readiness("needs image", f"{error}: it needs an image (sandbox=docker, podman)")
        except (ValueError, OSError) as error:
            return Readiness("refused", str(error))
        return READY
    in_image = task.origin is not None and task.origin.source is None
    if in_image and not _has_images(sandbox):
        return Readiness(
            "needs image",
            f"its repository is only in the image {task.image}: choose sandbox=docker, "
            "podman, apptainer or e2b, or give the row a repo_path, or set "
            f"{name_key('repositories')} to a directory of clones",
        )
    return READY


def _has_images(sandbox: SandboxConfig) -> bool:
    if isinstance(sandbox, CustomSandboxConfig):
        return sandbox.has_images
    return not isinstance(sandbox, LocalSandboxConfig)
