"""The settings of one process of a trainer, as they travel to it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt

from conf.sections.training import LocalTrainerConfig, RoutingReplayConfig

SOCKET = "socket"
"""Beside the settings: the descriptor, inherited, of the socket over which commands come."""


class RankSettings(BaseModel):
    """Everything that a process of a trainer is started with; sent as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trainer: LocalTrainerConfig
    routing: RoutingReplayConfig
    weights: Path
    """As of ``LocalTrainer``."""
    temperature: float
    seed: int
    merges_adapters: bool
    checkpoint: Path | None
    """Directory of the checkpoint to go on from."""
    step: NonNegativeInt
    """Steps done in it."""
    rank: NonNegativeInt = 0
    ranks: PositiveInt
    meeting: Path | None = None
    """A file that does not exist yet, in which several ranks find each other."""
    exchange_s: PositiveFloat = 1800.0
    """Longest wait of a rank for the others: they differ by their shares of a step."""
