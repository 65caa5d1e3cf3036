"""Fault plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from conf.fault_table import Boundary, FaultKind, validate_rule
from conf.sections.section import Section


class FaultWhen(Section):
    """Select hits (calls at a boundary); all that is given must hold."""

    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of each hit; drawn by a hash, so that neither timing nor order changes it."""
    k: PositiveInt | None = None
    """Only the k-th hit of this boundary in an attempt."""
    attempts: PositiveInt | None = None
    """Only the first so many attempts of a rollout."""
    rollouts: str = "*"
    """Only rollouts whose id matches this glob, e.g. ``train-000002-*``."""


class FaultRule(Section):
    """One kind of fault at one boundary; ``conf/fault_table.py`` has the allowed pairs."""

    where: Boundary
    when: FaultWhen = FaultWhen()
    what: FaultKind
    seconds: float | None = None
    """Length of a ``delay``, distance of a ``clock_jump``, time until a ``death``."""
    status: int | None = None
    """HTTP status of a fault of kind ``status``."""

    @model_validator(mode="after")
    def _validate(self) -> FaultRule:
        error = validate_rule(self.where, self.what, self.seconds, self.status)
        if error is not None:
            raise ValueError(error)
        return self


class PlannedFaultsConfig(Section):
    """A fault plan that comes with agentrl. The first rule that applies to a hit wins."""

    kind: Literal["none", "flaky_sandbox", "flaky_engine", "slow", "chaos"]
    seed: Annotated[int, Field(ge=0)] = 0
    """Decides, with the rollout's id, which hits meet a fault."""
    rules: tuple[FaultRule, ...] = ()
    """``{where, when, what}``: see docs/when_it_fails.md."""


class FileFaultsConfig(Section):
    """A fault plan of the user's own file; it is read once, and the run keeps its rules."""

    kind: Literal["file"]
    path: Path
    """YAML file with ``seed`` and ``rules``; it is read once, when the run is created."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Decides which hits meet a fault; null: the file's seed, or 0."""
    rules: tuple[FaultRule, ...] | None = None
    """Rules of the plan; null: those of the file."""


FaultsConfig = Annotated[PlannedFaultsConfig | FileFaultsConfig, Field(discriminator="kind")]
