"""How much is done, and what is shown and kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from conf.sections.section import BaseUrl, Port, Section


def _top_k(value: int) -> int:
    if value == 0 or value < -1:
        raise ValueError("must be -1 (the whole vocabulary) or at least 1")
    return value


class RunConfig(Section):
    """How much is done, and where it is kept."""

    dir: Path | None
    """Run directory; null picks ``runs/<date>-<time>-<scenario>`` below the current directory."""
    steps: Annotated[int, Field(ge=0)]
    """Training steps; 0 only evaluates."""
    tasks_per_step: PositiveInt
    """Groups (tasks) per step."""
    rollouts_per_task: PositiveInt
    """Rollouts per group (GRPO's group size)."""
    eval_tasks: Annotated[int, Field(ge=0)]
    """Held-out tasks per evaluation; 0 switches evaluation off."""
    eval_every: Annotated[int, Field(ge=0)]
    """Evaluate every so many steps besides before the first and after the last; 0: only those two.
    """
    keep_checkpoints: PositiveInt
    """Newest checkpoints kept (each step writes one)."""


class SamplingConfig(Section):
    """How the policy samples, in training and evaluation."""

    temperature: Annotated[float, Field(gt=0, le=10)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, AfterValidator(_top_k)]
    """-1: the whole vocabulary."""
    max_new_tokens: PositiveInt
    """Per turn; a client's smaller ``max_tokens`` wins."""
    eval_temperature: Annotated[float, Field(ge=0, le=10)]
    """0: greedy."""


class GatewayConfig(Section):
    """The HTTP service that speaks the agents' dialects and records turns."""

    host: str
    port: Port
    """0: any free port."""
    public_url: BaseUrl | None
    """URL by which sandboxes elsewhere reach it: a public address, a tunnel's; null: only this
    machine's do.
    """
    ping_s: PositiveFloat
    """Seconds between SSE pings while the engine works."""


class EvalConfig(Section):
    """What ``agentrl eval`` measures of its benchmark."""

    tasks: PositiveInt | None
    """At most so many; null: all."""
    offset: Annotated[int, Field(ge=0)]
    """So many are passed over first."""
    ids: str
    """Only tasks whose id matches this glob."""
    attempts_per_task: PositiveInt
    """Rollouts per task (n); pass@1 to pass@n are estimated."""


class ObserveConfig(Section):
    """What is shown and kept besides the store."""

    dashboard: Literal["auto", "on", "off"]
    """auto: only when stderr is a terminal."""
    tensorboard: bool
    watchdog_s: Annotated[float, Field(ge=0)]
    """An event loop (driver, gateway, engine) that has not run for so long is described in a file;
    0: off.
    """
    stuck_s: Annotated[float, Field(ge=0)]
    """An attempt without progress (stage, turn) for so long is described in a file; 0: off. It is
    not ended: deadlines do that.
    """
