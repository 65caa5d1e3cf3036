"""Runs scenarios against a gateway, and judges each."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentrl.referee.adapters import Gateway
from agentrl.referee.agent import AgentSession, ScenarioStopped, ScriptedAgent
from agentrl.referee.conversation import (
    GatewayFault,
    NotOffered,
    ProgramTurn,
    Sampling,
    TrainedSample,
    Words,
)
from agentrl.referee.engine import ScenarioEngine
from agentrl.referee.judge import Judgement, judge, link
from agentrl.referee.program import Scenario
from agentrl.referee.vocabulary import Vocabulary

WIRES = ("anthropic", "chat", "responses")
CELL_S = 120.0
"""The longest time of one scenario: a gateway may be slow in every request."""
SILENT_CELLS = 3
"""So many scenarios in a row whose requests all got no answer end a run."""


@dataclass(slots=True)
class Cell:
    """One scenario on one API."""

    scenario: Scenario
    wire: str
    not_offered: str = ""
    """Why the API, or the gateway, has no such thing; empty: it was judged."""
    broken: str = ""
    """Why it could not be judged whole; it counts as a request without an answer."""
    judgement: Judgement = field(default_factory=Judgement)
    turns: Sequence[ProgramTurn] = ()
    samplings: Sequence[Sampling] = ()
    samples: Sequence[TrainedSample] = ()

    @property
    def is_silent(self) -> bool:
        """Return whether the gateway did not answer at all."""
        asked = [turn for turn in self.turns if not turn.cancelled]
        return bool(self.broken) and not any(turn.status for turn in asked)

    @property
    def state(self) -> str:
        """``not offered``, ``wrong``, ``lost``, ``costly`` (more chains) or ``clean``."""
        scores = self.judgement.scores
        if self.not_offered:
            return "not offered"
        if scores.wrong:
            return "wrong"
        return "lost" if scores.missing else "costly" if scores.chains else "clean"


class Trial:
    """A gateway, the engine behind it, and the words that were used."""

    def __init__(
        self,
        gateway: Gateway,
        engine: ScenarioEngine,
        vocabulary: Vocabulary,
        *,
        first_sampling: int = 0,
        seed: int | None = None,
    ) -> None:
        """``seed``: of the words; without it they are other ones in each run."""
        self._gateway = gateway
        self._engine = engine
        self._vocabulary = vocabulary
        self._words = Words(secrets.randbelow(24**6) if seed is None else seed)
        self._seen = first_sampling

    async def run(self, scenarios: Iterable[Scenario], wires: Sequence[str]) -> AsyncIterator[Cell]:
        """Yield a cell for each scenario and API; raises GatewayFault if all of it is silent."""
        silent = 0
        for scenario in scenarios:
            for wire in wires:
                cell = await self.run_cell(scenario, wire)
                yield cell
                silent = silent + 1 if cell.is_silent else 0
                if silent == SILENT_CELLS:
                    raise GatewayFault(f"{silent} scenarios in a row got no answer: {cell.broken}")

    async def run_cell(self, scenario: Scenario, wire: str) -> Cell:
        """Run one scenario on one API."""
        cell = Cell(scenario, wire)
        try:
            client, handle = await self._gateway.open(wire)
        except GatewayFault as fault:
            self._break(cell, f"open: {fault}")
            return cell
        session = AgentSession(client, self._engine, self._words, scenario.stream)
        try:
            async with asyncio.timeout(CELL_S):
                await scenario.run(ScriptedAgent(session))
        except* NotOffered as group:
            cell.not_offered = str(group.exceptions[0])
        except* ScenarioStopped as group:
            cell.broken = str(group.exceptions[0])  # of the requests, and the judge sees them
        except* TimeoutError:
            self._break(cell, f"the scenario took longer than {CELL_S:g} s")
        await self._engine.set_version(1)
        try:
            cell.samples = await self._gateway.finish(handle)
        except GatewayFault as fault:
            if not cell.not_offered:
                self._break(cell, f"finish: {fault}")
        cell.samplings = await self._engine.list_samplings(self._seen)
        self._seen += len(cell.samplings)
        cell.turns = link(session.turns, cell.samplings)
        if not cell.not_offered:
            found = judge(cell.turns, cell.samplings, cell.samples, self._vocabulary)
            found.scores.add(cell.judgement.scores)
            found.findings += cell.judgement.findings
            if cell.broken and not found.scores.refused:
                found.scores.refused += 1
                found.note("refused", cell.broken)
            cell.judgement = found
        return cell

    def _break(self, cell: Cell, reason: str) -> None:
        cell.broken = reason
        cell.judgement.scores.refused += 1
        cell.judgement.note("refused", reason)


async def collect(
    trial: Trial,
    scenarios: Iterable[Scenario],
    wires: Sequence[str],
    progress: Callable[[Cell], None] = lambda cell: None,
) -> tuple[list[Cell], str]:
    """Return all cells, and why the run ended before its end, if it did."""
    cells = []
    try:
        async for cell in trial.run(scenarios, wires):
            cells.append(cell)
            progress(cell)
    except GatewayFault as fault:
        return cells, str(fault)
    return cells, ""


def now() -> str:
    """Return the date and the time of a report."""
    return time.strftime("%Y-%m-%d %H:%M")
