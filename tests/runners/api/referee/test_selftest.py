"""A perfect gateway is clean in every scenario; each broken one is seen by the right score.

``seen_by.json`` has the scenario that sees a mutant first; the integration test looks for it again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.referee.adapters import ReferenceGateway
from agentrl.referee.engine import CueEngine
from agentrl.referee.mutants import make_mutants
from agentrl.referee.program import Scenario
from agentrl.referee.reference import PerfectGateway
from agentrl.referee.selftest import run_selftest
from agentrl.referee.trial import Cell, Trial, collect
from agentrl.referee.vocabulary import Vocabulary

SEEN_BY: dict[str, str] = json.loads(Path(__file__).with_name("seen_by.json").read_text())
MUTANTS = make_mutants()


def make_trial(vocabulary: Vocabulary, gateway: type[PerfectGateway]) -> Trial:
    engine = CueEngine(vocabulary)
    return Trial(ReferenceGateway(lambda: gateway(engine)), engine, vocabulary, seed=0)


async def test_the_perfect_gateway_is_clean(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    trial = make_trial(vocabulary, PerfectGateway)
    cells, ended = await collect(trial, scenarios.values(), ["neutral"])
    assert not ended
    assert [(cell.scenario.name, cell.judgement) for cell in cells if cell.state != "clean"] == []
    assert len(cells) == len(scenarios) >= 60
    assert all(cell.judgement.scores.trained for cell in cells)


def test_there_are_fifty_mutants_and_each_has_its_scenario() -> None:
    assert len(MUTANTS) >= 50
    assert MUTANTS.keys() == SEEN_BY.keys()


@pytest.mark.parametrize("name", list(MUTANTS))
async def test_a_broken_gateway_is_seen_by_its_score(
    name: str, vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    score, gateway = MUTANTS[name]
    cell: Cell = await make_trial(vocabulary, gateway).run_cell(scenarios[SEEN_BY[name]], "neutral")
    assert getattr(cell.judgement.scores, score) > 0
    assert any(finding["kind"] == score for finding in cell.judgement.findings)


@pytest.mark.integration
async def test_the_selftest_finds_the_scenario_that_sees_a_mutant_first(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    seen = await run_selftest(vocabulary, scenarios.values())
    assert all(each.ok for each in seen)
    assert {each.name: each.scenario for each in seen if each.score} == SEEN_BY
