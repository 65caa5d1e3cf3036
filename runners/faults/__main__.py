"""Serve a gateway under a fault plan: ``python -m runners.faults``, like ``runners.gateway``."""

from __future__ import annotations

from runners.faults.wiring import pop_gateway_hooks
from runners.gateway.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(pop_gateway_hooks))
