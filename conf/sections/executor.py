"""Where rollouts run."""

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
    """In the driver's own process, on its machine."""

    kind: Literal["local"]


class RayExecutorConfig(Section):
    """On the nodes of a Ray cluster that runs already, this machine among them."""

    kind: Literal["ray"]
    address: Annotated[str, AfterValidator(_address)] | None
    """The head's, ``host:port``; null: what RAY_ADDRESS says, else the cluster of this machine."""
    rollouts_per_node: PositiveInt
    """At once, on one node."""
    driver_node: bool
    """Whether the node on which the driver runs takes rollouts, too."""
    patience_s: PositiveFloat
    """Without any node that takes rollouts, the run ends after so long; it can be resumed."""


ExecutorConfig = Annotated[LocalExecutorConfig | RayExecutorConfig, Field(discriminator="kind")]
