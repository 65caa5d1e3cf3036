"""``python -m runners.gateway``: the gateway as a child process of a run."""

from __future__ import annotations

from runners.gateway.service import main

if __name__ == "__main__":
    raise SystemExit(main())
