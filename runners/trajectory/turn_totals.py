"""The sums over a session's turns that an attempt's record and reward need, without the tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnTotals:
    """Sums over the turns of one session."""

    turns: int = 0
    sampled_tokens: int = 0
    malformed_turns: int = 0
    """Turns with at least one tool call that did not parse."""
    ends_malformed: bool = False
    """True if the last turn is one of them."""

    @classmethod
    def add_up(cls, turns: Iterable[tuple[int, int]]) -> TurnTotals:
        """Return the totals of turns in order, each given as (sampled tokens, malformed calls)."""
        known = list(turns)
        return cls(
            turns=len(known),
            sampled_tokens=sum(sampled for sampled, _ in known),
            malformed_turns=sum(malformed > 0 for _, malformed in known),
            ends_malformed=bool(known) and known[-1][1] > 0,
        )
