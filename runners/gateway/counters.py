"""What happened in a session, in numbers and by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from runners.engines.resilient import EngineCallCounters


@dataclass(slots=True)
class SessionCounters(EngineCallCounters):
    """What happened in a session; changed by it only, the engine's tally by the engine."""

    turns: int = 0
    branches: Counter[str] = field(default_factory=Counter)
    """Chains, by branch kind."""
    ambiguous: int = 0
    """Requests that may be a sub-agent's, but nothing says of which; the main thread has them."""
    sampled_tokens: int = 0
    malformed_calls: int = 0
    retries: int = 0
    """Requests answered from an earlier or running turn."""
    aborted: int = 0
    """Generations given up, since nobody waited for them any more."""
    failed: int = 0
    """Generations that the engine failed for good."""
    parser_fallbacks: int = 0
    """Turns whose text is as it was sampled, since the server's parsers did not answer."""
    tools_changed: int = 0
    """Turns whose tools differ from those of the turn that they continue."""
    retokenization_mismatches: int = 0
    """Turns whose tokens another encoding of the same text would replace: what re-rendering the
    history would lose.
    """
    ignored: Counter[str] = field(default_factory=Counter)
    """Sampling parameters that clients asked for in vain."""
    breaks: list[dict[str, Any]] = field(default_factory=list)
    """Every turn that left some of its thread's history behind: ``turn, thread, kind, reason,
    message``, and the first token that differs: ``token, before, after``.
    """
