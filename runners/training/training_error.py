"""Declare the error of training, which is caught where torch is not imported."""

from __future__ import annotations

from conf.errors import AgentrlError


class TrainingError(AgentrlError):
    """Training cannot go on: the loss or a gradient is not finite, or the weights do not fit."""
