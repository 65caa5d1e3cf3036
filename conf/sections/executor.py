"""The machines on which rollouts run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from conf.sections.section import Section


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not host or not colon or not port.isdecimal() or "/" in value:
        raise ValueError("must be HOST:PORT, the head's, e.g. 10.0.0.1:6379")
    return value


class LocalExecutorConfig(Section):
    """Rollouts run in the driver's own process."""

    kind: Literal["local"]


class RayExecutorConfig(Section):
    """Rollouts run on the nodes of a running Ray cluster that this machine is part of."""

    kind: Literal["ray"]
    address: Annotated[str, AfterValidator(_address)] | None = None
    """Address of the head, ``host:port``; null: RAY_ADDRESS, or the cluster of this machine."""
    rollouts_per_node: PositiveInt = 16
    """Rollouts in flight on one node; ``rollout.concurrency`` is the limit for all nodes together.
    """
    driver_node: bool = True
    """True if the node on which the driver runs takes rollouts, too."""
    patience_s: PositiveFloat = 60
    """Seconds without any node that takes rollouts, after which the run ends; it can be resumed."""


ExecutorConfig = Annotated[LocalExecutorConfig | RayExecutorConfig, Field(discriminator="kind")]
