"""What the agent works on, and what that is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.section import Section


class BugfixTaskConfig(Section):
    """Generated git repositories, each with one bug and real tests."""

    kind: Literal["bugfix"]
    train_tasks: PositiveInt
    """Tasks in the training split."""
    held_out_tasks: PositiveInt
    """Tasks in the held-out split; shares no repository with the training split."""


class SwebenchTaskConfig(Section):
    """SWE-bench's instances, to measure on: none is for training."""

    kind: Literal["swebench"]
    path: str | None
    """JSONL, JSON or Parquet file, or a dataset on the hub: ``OWNER/NAME[@REVISION][:SPLIT]``;
    null: a small set that agentrl makes itself.
    """
    repositories: Path | None
    """Directory with clones (``owner/name``, ``owner__name.git`` or ``….bundle``) for rows that do
    not say where their repository is.
    """
    grader: Literal["auto", "official", "own"]
    """``official``: the package ``swebench`` reads the log; ``own``: our plugin in pytest; auto:
    official if the package is installed.
    """
    flaky_reruns: Annotated[int, Field(ge=0)]
    """Grade again when only pass-to-pass tests fail; one good run decides."""


class JsonlTaskConfig(Section):
    """Tasks in a file, in any of the row schemas, to train on."""

    kind: Literal["jsonl"]
    path: str
    """JSONL, JSON or Parquet file, or a dataset on the hub: ``OWNER/NAME[@REVISION][:SPLIT]``."""
    repositories: Path | None
    """Directory with clones (``owner/name``, ``owner__name.git`` or ``….bundle``) for rows that do
    not say where their repository is.
    """
    held_out_tasks: Annotated[int, Field(ge=0)]
    """The file's last so many tasks are held out."""
    grader: Literal["auto", "official", "own"]
    """Of SWE-bench's rows. ``official``: the package ``swebench`` reads the log; ``own``: our
    plugin in pytest; auto: official if the package is installed.
    """
    flaky_reruns: Annotated[int, Field(ge=0)]
    """Grade again when only pass-to-pass tests fail; one good run decides."""


TaskConfig = Annotated[
    BugfixTaskConfig | SwebenchTaskConfig | JsonlTaskConfig, Field(discriminator="kind")
]


class TestsRewardConfig(Section):
    """Reward from the graded tests, with small shaping."""

    kind: Literal["tests"]
    solved: float
    unsolved: float
    partial: bool
    """Without being solved, the passed share of the fail-to-pass tests counts between ``unsolved``
    and ``solved``, if every pass-to-pass test passes.
    """
    turn_penalty: Annotated[float, Field(ge=0)]
    """Taken off per turn."""
    malformed_penalty: Annotated[float, Field(ge=0)]
    """Taken off once if the rollout contains a malformed tool call."""
