"""Runs scenarios against a gateway, written ones and random ones, and has each judged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

from agentrl.referee.adapters import Gateway
from agentrl.referee.agent import AgentSession, ScenarioStopped, ScriptedAgent
from agentrl.referee.conversation import GatewayFault, NotOffered, RefereeError, Words
from agentrl.referee.judge import Cell, judge, link
from agentrl.referee.policy import CueEngine
from agentrl.referee.program import WALK, Scenario, load_walk_steps

CELL_S = 120.0
"""The longest time of one scenario: a gateway may be slow in every request."""
SILENT_CELLS = 3
"""So many scenarios in a row whose requests all got no answer end a run."""
MOST_STEPS = 7
"""Of a random program: with its head, its first message and its last turn it has ten lines."""


class Trial:
    """A gateway, the engine behind it, and the words that were used."""

    def __init__(self, gateway: Gateway, engine: CueEngine, *, seed: int | None = None) -> None:
        """``seed``: of the words; without it they are other ones in each run."""
        self._gateway = gateway
        self._engine = engine
        self._words = Words(seed)
        self._seen = 0

    async def run(
        self,
        scenarios: Iterable[Scenario],
        wires: Sequence[str],
        progress: Callable[[list[Cell]], None] = lambda cells: None,
    ) -> tuple[list[Cell], str]:
        """Return a cell for each scenario and API, and why the run ended before its end, if so."""
        cells: list[Cell] = []
        for scenario in scenarios:
            for wire in wires:
                cells.append(await self.run_cell(scenario, wire))
                progress(cells)
                last = cells[-SILENT_CELLS:]
                silent = [c.broken and not any(turn.status for turn in c.turns) for c in last]
                if len(silent) == SILENT_CELLS and all(silent):
                    why = f"{SILENT_CELLS} scenarios in a row got no answer: {cells[-1].broken}"
                    return cells, why
        return cells, ""

    async def run_cell(self, scenario: Scenario, wire: str) -> Cell:
        """Run one scenario on one API."""
        cell = Cell(scenario, wire)
        try:
            client, handle = await self._gateway.open(wire)
        except GatewayFault as fault:
            cell.broken = f"open: {fault}"
            cell.add("refused", 1, cell.broken)
            return cell
        session = AgentSession(client, self._engine, self._words, scenario.stream)
        try:
            async with asyncio.timeout(CELL_S):
                await scenario.run(ScriptedAgent(session))
        except* NotOffered as group:
            cell.not_offered = str(group.exceptions[0])
        except* ScenarioStopped as group:
            cell.broken = str(group.exceptions[0])
        except* TimeoutError:
            cell.broken = f"the scenario took longer than {CELL_S:g} s"
        self._engine.version = 1
        try:
            cell.samples = await self._gateway.finish(handle)
        except GatewayFault as fault:
            cell.broken = f"finish: {fault}"
        cell.samplings = self._engine.samplings[self._seen :]
        self._seen += len(cell.samplings)
        cell.turns = link(session.turns, cell.samplings)
        if not cell.not_offered:
            judge(cell, self._engine.vocabulary)
        return cell


def make_walk(steps: Sequence[str]) -> Scenario:
    """Return a scenario of these steps."""
    source = "\n".join(['b = branch(); user("Begin.")', *steps, "go_on(); end()"])
    return Scenario("walk", WALK, "random steps, shrunk", source)


async def find_failure(trial: Trial, wire: str, examples: int) -> Cell | None:
    """Return the shortest failure among so many random programs on one API; None without one.

    The programs are the same ones in each run. Raises RefereeError if hypothesis is not installed.
    """
    try:
        from hypothesis import HealthCheck, Phase, find, settings, strategies
        from hypothesis.errors import NoSuchExample
    except ModuleNotFoundError as error:
        raise RefereeError(
            "walks need hypothesis: pip install 'agentrl-campaigns[walks]'"
        ) from error
    loop = asyncio.get_running_loop()

    def run(steps: Sequence[str]) -> Cell:
        cell = trial.run_cell(make_walk(steps), wire)
        return asyncio.run_coroutine_threadsafe(cell, loop).result()

    def search() -> Cell | None:
        try:
            shortest = find(
                strategies.lists(strategies.sampled_from(load_walk_steps()), max_size=MOST_STEPS),
                lambda steps: run(steps).state in ("wrong", "lost"),
                settings=settings(
                    max_examples=examples,
                    deadline=None,
                    database=None,
                    phases=(Phase.generate, Phase.shrink),
                    suppress_health_check=list(HealthCheck),
                ),
                random=random.Random(0),
            )
        except NoSuchExample:
            return None
        return run(shortest)

    return await asyncio.to_thread(search)
