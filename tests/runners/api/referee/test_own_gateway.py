"""Our own gateway before the referee, and the page about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.referee.judge import Cell
from agentrl.referee.policy import Vocabulary
from agentrl.referee.program import Scenario
from agentrl.referee.report import describe_run, list_rows
from tests.documentation.referee_column import PAGE, judge_own, read_section, write_section

NEVER = ("lost", "ghost", "doubled", "invented", "logprobs", "versions", "calls")
FEW = ("linear", "streamed_thoughts", "five_calls", "retry_unanswered", "subagents_parallel")


def check(cells: list[Cell]) -> None:
    for cell in cells:
        for score in NEVER:
            found = cell.scores[score]
            assert not found, (cell.scenario.name, cell.wire, cell.findings)


async def test_our_gateway_is_clean_in_the_scenarios_of_every_day(
    tmp_path: Path, scenarios: dict[str, Scenario]
) -> None:
    cells, ended = await judge_own(tmp_path / "run", [scenarios[name] for name in FEW])
    assert not ended
    assert len(cells) == 4 * len(FEW)
    check(cells)
    assert {cell.state for cell in cells} == {"clean"}


@pytest.mark.integration
async def test_the_page_shows_what_is_red_in_our_gateway(
    tmp_path: Path, scenarios: dict[str, Scenario], vocabulary: Vocabulary
) -> None:
    cells, ended = await judge_own(tmp_path / "run", scenarios.values())
    assert not ended
    check(cells)
    run = describe_run(cells, vocabulary, gateway="agentrl")
    assert len(list_rows(run)[1]) == len(scenarios)
    shown = read_section(PAGE.read_text("utf-8")).partition("\n\n")[2]
    fresh = write_section(run).partition("\n\n")[2]
    assert shown.strip() == fresh.strip(), (
        "run python -m tests.documentation.referee_column --write"
    )
