"""The gateway of a run with a fault plan: its engine fails, and its clients go away."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from conf.sections.faults import FaultsConfig
from runners.engines.contract import Engine
from runners.faults.engine import FaultyEngine
from runners.faults.plan import Fault, FaultPlan
from runners.faults.server import DroppingServer
from runners.gateway.service import GatewayHooks
from runners.gateway.turn_log import AsyncTurnLog


def choose_gateway_module(
    section: FaultsConfig, settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the module that serves a run's gateway, and the settings it is given."""
    if not FaultPlan.of(section):
        return "runners.gateway", settings
    return "runners.faults", {**settings, "faults": section.model_dump(mode="json")}


def make_gateway_hooks(section: FaultsConfig) -> GatewayHooks:
    """Return what a gateway with this fault plan does in place of the ordinary one."""
    plan = FaultPlan.of(section)
    if not plan:
        return GatewayHooks()

    def wrap_engine(real: Engine, turn_log: AsyncTurnLog) -> Engine:
        async def keep(fault: Fault) -> None:
            await turn_log.event("fault", fault.event())

        return FaultyEngine(real, plan, keep)

    return GatewayHooks(wrap_engine=wrap_engine, server_class=DroppingServer)


def pop_gateway_hooks(settings: dict[str, Any]) -> GatewayHooks:
    """Take ``faults`` out of a gateway's settings and return what they make of it."""
    section: FaultsConfig = TypeAdapter(FaultsConfig).validate_python(settings.pop("faults"))
    return make_gateway_hooks(section)
