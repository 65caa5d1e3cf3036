"""The calls of an engine that cannot be trained with: each of them is refused.

The configuration's rules refuse such a run before; this is for whoever calls the engine otherwise.
"""

from __future__ import annotations

from pathlib import Path

from runners.engines.contract import EngineError, EngineLoad


class FixedWeights:
    """The part of ``ServedEngine`` that only training needs, for engines without it."""

    name: str

    async def update_weights(self, path: Path, version: int) -> None:
        """Raise EngineError."""
        raise self._refusal()

    async def loads(self) -> EngineLoad:
        """Raise EngineError."""
        raise self._refusal()

    async def abort_all(self) -> None:
        """Raise EngineError."""
        raise self._refusal()

    def _refusal(self) -> EngineError:
        return EngineError(
            f"engine {self.name} cannot be trained with: its weights are fixed; use engine=sglang"
        )
