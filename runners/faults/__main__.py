"""``python -m runners.faults``: ``python -m runners.gateway`` under a fault plan."""

from __future__ import annotations

from runners.faults.process import pop_gateway_hooks
from runners.gateway.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(pop_gateway_hooks))
