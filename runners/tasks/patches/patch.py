"""Capture an agent's patch, by a process of its own that reads the workspace; its program too. And
keep it in a rollout's record: text for people, exact bytes for grading it again.

Whatever is in the workspace, the driver is not held up: the process has limits of time and memory,
and its end is an answer too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runners.records.outcome import OutcomeCode
from runners.sandboxes.contract import OversizedError, Sandbox
from runners.tasks.contract import (
    DEFAULT_LIMITS,
    CaptureLimits,
    Patch,
    ScriptGrading,
    Task,
    UnittestIds,
    make_refused_patch,
)
from runners.tasks.patches import capture_process
from runners.tasks.patches.diffs import read_paths
from runners.tasks.patches.protection import escape_path
from runners.tasks.patches.workspace_diff import PatchError, diff_workspace
from runners.tasks.repositories.snapshots import read_excluded_paths

CAPTURE_S = 30.0
"""Time to capture a patch, where no configuration says it."""


async def capture_patch(
    task: Task,
    sandbox: Sandbox,
    limits: CaptureLimits = DEFAULT_LIMITS,
    *,
    deadline_s: float = CAPTURE_S,
) -> Patch:
    """Return the patch of a sandbox in which nothing runs any more.

    A process of its own reads the workspace: whatever is in it, this one is not held up. A change
    that is too large, or that cannot be read, gives a refused patch. Raises PatchError and
    SandboxError.
    """
    try:
        leave_out = (".git", *read_excluded_paths(task.repo))
        async with sandbox.on_host(leave_out=leave_out) as workspace:
            return await capture_apart(task, workspace, limits, deadline_s=deadline_s)
    except OversizedError as error:
        return make_refused_patch(str(error), code=OutcomeCode.POLICY_OVERSIZED_WORKSPACE)


async def capture_apart(
    task: Task,
    workspace: Path,
    limits: CaptureLimits = DEFAULT_LIMITS,
    *,
    deadline_s: float = CAPTURE_S,
) -> Patch:
    """Return the patch of a workspace, captured by a process of its own; raises PatchError."""
    request = {
        "task": {
            "id": task.id,
            "repo": str(task.repo),
            "base_commit": task.base_commit,
            "protected": task.protected,
            "gold_patch": task.gold_patch,
            "unittest": isinstance(task.grading, UnittestIds),
            "command": _command_of(task),
        },
        "workspace": str(workspace),
        "limits": asdict(limits),
    }
    try:
        reply = await capture_process.call(json.dumps(request).encode(), deadline_s)
    except capture_process.EndedError as ended:
        return make_refused_patch(
            f"reading the workspace ended with {ended}",
            code=OutcomeCode.POLICY_UNREADABLE_WORKSPACE,
        )
    except OSError as error:
        raise PatchError(f"cannot capture the patch of {task.id}: {error}") from error
    return _decode_reply(reply)


def _command_of(task: Task) -> tuple[str, str]:
    """Return the command that decides, and the repository's path in it; empty if none does."""
    grading = task.grading
    if isinstance(grading, ScriptGrading) and grading.kind == "eval_cmd":
        return grading.script, grading.workdir
    return "", ""


def answer_request(request: bytes) -> bytes:
    """Return the reply to a request of ``capture_apart``, in the capturing process."""
    asked = json.loads(request)
    wanted = asked["task"]
    task = Task(
        id=wanted["id"],
        split="train",
        repo=Path(wanted["repo"]),
        base_commit=wanted["base_commit"],
        problem_statement="",
        fail_to_pass=(),
        pass_to_pass=(),
        protected=tuple(wanted["protected"]),
        gold_patch=wanted["gold_patch"],
        kind="",
        grading=UnittestIds()
        if wanted["unittest"]
        else ScriptGrading("eval_cmd", *wanted["command"]),
    )
    try:
        patch = diff_workspace(task, Path(asked["workspace"]), CaptureLimits(**asked["limits"]))
    except PatchError as error:
        return json.dumps({"error": str(error)}).encode()
    head = {
        "files": patch.files,
        "protected_touched": patch.protected_touched,
        "refused": patch.refused,
        "refused_as": patch.refused_as,
    }
    return json.dumps(head).encode() + b"\n" + patch.diff


def _decode_reply(reply: bytes) -> Patch:
    first, _, diff = reply.partition(b"\n")
    head = json.loads(first)
    if "error" in head:
        raise PatchError(head["error"])
    return Patch(
        diff=diff,
        sha256=hashlib.sha256(diff).hexdigest(),
        files=tuple(head["files"]),
        protected_touched=tuple(head["protected_touched"]),
        refused=head["refused"],
        refused_as=head["refused_as"],
    )


if __name__ == "__main__":
    capture_process.serve(answer_request, int(sys.argv[1]))


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
