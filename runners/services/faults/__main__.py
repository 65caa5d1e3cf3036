"""Serve a gateway under a fault plan: ``python -m runners.services.faults``."""

from __future__ import annotations

from runners.gateway.service import main
from runners.services.faults.wiring import pop_gateway_hooks

if __name__ == "__main__":
    raise SystemExit(main(pop_gateway_hooks))
