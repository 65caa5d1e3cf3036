"""Fault plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from conf.fault_table import Boundary, FaultKind, validate_rule
from conf.sections.section import Section


class FaultWhen(Section):
    """Which crossings of a boundary a rule hits; all that is given must hold."""

    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of each crossing; drawn by a hash, so that neither timing nor order decides."""
    k: PositiveInt | None = None
    """Only the k-th crossing of this boundary in an attempt."""
    attempts: PositiveInt | None = None
    """Only the first so many attempts of a rollout."""
    rollouts: str = "*"
    """Only rollouts whose id matches this glob, e.g. ``train-000002-*``."""


class FaultRule(Section):
    """One kind of fault; ``conf/fault_table.py`` says what can happen where."""

    where: Boundary
    when: FaultWhen = FaultWhen()
    what: FaultKind
    seconds: float | None = None
    """How long a ``delay`` is, how far a ``clock_jump`` goes, and when ``death`` comes."""
    status: int | None = None
    """HTTP status of a ``status``."""

    @model_validator(mode="after")
    def _can_happen(self) -> FaultRule:
        fault = validate_rule(self.where, self.what, self.seconds, self.status)
        if fault is not None:
            raise ValueError(fault)
        return self


class PlannedFaultsConfig(Section):
    """A fault plan of ours. Of the rules that fit a crossing, the first happens."""

    kind: Literal["none", "flaky_sandbox", "flaky_engine", "slow", "chaos"]
    seed: Annotated[int, Field(ge=0)]
    """Decides, with the rollout's id, which crossings are hit."""
    rules: tuple[FaultRule, ...]


class FileFaultsConfig(Section):
    """A fault plan of the user's own file, which is read once: the run keeps its rules."""

    kind: Literal["file"]
    path: Path
    """YAML file with ``seed`` and ``rules``."""
    seed: Annotated[int, Field(ge=0)] | None
    """null: the file's, or 0."""
    rules: tuple[FaultRule, ...] | None
    """null: the file's."""


FaultsConfig = Annotated[PlannedFaultsConfig | FileFaultsConfig, Field(discriminator="kind")]
