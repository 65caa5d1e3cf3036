"""The referee's test of itself: a perfect gateway is clean, and each broken one is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentrl.referee.adapters import ReferenceGateway
from agentrl.referee.engine import CueEngine
from agentrl.referee.mutants import make_mutants
from agentrl.referee.program import Scenario
from agentrl.referee.reference import PerfectGateway
from agentrl.referee.trial import Cell, Trial
from agentrl.referee.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class SeenMutant:
    """One gateway of the self-test."""

    name: str
    score: str
    """The score that has to see it; empty for the perfect gateway."""
    scenario: str
    """The first scenario that sees it; empty if none does."""

    @property
    def ok(self) -> bool:
        """True if a broken gateway is seen, or the perfect one is not."""
        return bool(self.scenario) == bool(self.score)


async def run_selftest(
    vocabulary: Vocabulary,
    scenarios: Iterable[Scenario],
    progress: Callable[[SeenMutant], None] = lambda seen: None,
) -> list[SeenMutant]:
    """Judge the perfect gateway, and each mutant until its score sees it."""
    known = list(scenarios)
    found = []
    for name, (score, gateway) in {
        "the perfect gateway": ("", PerfectGateway),
        **make_mutants(),
    }.items():
        found.append(SeenMutant(name, score, await _find(vocabulary, known, gateway, score)))
        progress(found[-1])
    return found


async def _find(
    vocabulary: Vocabulary,
    scenarios: list[Scenario],
    gateway: type[PerfectGateway],
    score: str,
) -> str:
    engine = CueEngine(vocabulary)
    trial = Trial(ReferenceGateway(lambda: gateway(engine)), engine, vocabulary, seed=0)
    for scenario in scenarios:
        cell: Cell = await trial.run_cell(scenario, "neutral")
        if getattr(cell.judgement.scores, score) if score else cell.state != "clean":
            return scenario.name
    return ""
