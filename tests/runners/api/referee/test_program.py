"""Scenarios as text, random walks, and what a run reports."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.referee.adapters import read_samples
from agentrl.referee.clients import APIS
from agentrl.referee.conversation import (
    ProgramRequest,
    RefereeError,
    TrainedSample,
    Words,
    find_words,
)
from agentrl.referee.policy import CueEngine, Vocabulary
from agentrl.referee.program import Scenario, read_scenarios
from agentrl.referee.report import describe_run, explain, read_run, write_page
from agentrl.referee.trial import Trial, find_failure, make_walk
from cli.referee import WIRE_NAMES
from tests.runners.api.referee.perfect_gateway import Node, PerfectGateway, ReferenceGateway


def make_trial(vocabulary: Vocabulary, gateway: type[PerfectGateway] = PerfectGateway) -> Trial:
    engine = CueEngine(vocabulary)
    return Trial(ReferenceGateway(engine, gateway), engine, seed=0)


class EditsAreUndone(PerfectGateway):
    """An answer is known by its place."""

    def continues(self, node: Node, request: ProgramRequest) -> bool:
        sent = request.history
        return len(sent) > len(node.conversation) and request.system == node.request.system


class TokensAreFlipped(PerfectGateway):
    def make_sample(self, leaf: Node, claimed: set[int]) -> TrainedSample:
        sample = super().make_sample(leaf, claimed)
        return replace(sample, tokens=(sample.tokens[0] ^ 1, *sample.tokens[1:]))


def test_a_scenario_is_written_as_it_is_read(
    tmp_path: Path, scenarios: dict[str, Scenario]
) -> None:
    file = tmp_path / "scenarios.txt"
    file.write_text("\n".join(each.write() for each in scenarios.values()))
    assert read_scenarios(file) == scenarios
    groups = {each.group for each in scenarios.values()}
    assert {"linear", "streaming", "ids", "retries", "cancels", "sub-agents", "edits"} <= groups


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("no head\n", "no `group / name"),
        ("a / b: c\n    user(\n", "1: "),
        ("a / b: c\n    import os\n", "invalid syntax"),
        ("a / b: c\n    exec('1')\n", "there is no step exec"),
        ("a / b: c\n    together([os.system('x')], [exec('1')])\n", "there is no step"),
        ("a / b: c\n    _history.clear()\n", "there is no step"),
        ("a / b: c\n    b = branch(); b._script(1)\n", "there is no step _script"),
        ("a / b: c\n    end()\na / b: c\n    end()\n", "a name that was used"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "scenarios.txt"
    file.write_text(text)
    with pytest.raises(RefereeError, match=wanted):
        read_scenarios(file)


async def test_wrong_arguments_of_a_step_are_named(tmp_path: Path, vocabulary: Vocabulary) -> None:
    file = tmp_path / "scenarios.txt"
    file.write_text("a / b: c\n    cut(nothing=1)\n")
    (scenario,) = read_scenarios(file).values()
    with pytest.raises(RefereeError, match=r"b: cut\(nothing=1\): .*unexpected keyword"):
        await make_trial(vocabulary).run_cell(scenario, "neutral")


def test_the_command_offers_every_api() -> None:
    assert list(APIS) == list(WIRE_NAMES)


def test_words_are_never_used_twice_and_never_parts_of_each_other() -> None:
    words = Words(12345)
    made = [words.new() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert find_words("".join(made)) == set(made)
    assert words.fill({"a": ["{w}", 5]})["a"][0] not in made


# --- walks ----------------------------------------------------------------------------------------


async def test_random_programs_find_nothing_in_a_perfect_gateway(vocabulary: Vocabulary) -> None:
    assert await find_failure(make_trial(vocabulary), "neutral", 25) is None


async def test_a_failure_is_a_program_of_at_most_ten_lines(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    gateway = EditsAreUndone
    cell = await find_failure(make_trial(vocabulary, gateway), "neutral", 100)
    assert cell is not None
    assert cell.state == "wrong"
    written = cell.scenario.write()
    assert len(written.splitlines()) <= 10
    assert "edit(" in written or "Changed" in written or "assistant(" in written
    file = tmp_path / "replay.txt"
    file.write_text(written)
    (again,) = read_scenarios(file).values()
    repeated = await make_trial(vocabulary, gateway).run_cell(again, "neutral")
    assert repeated.state == "wrong"


async def test_a_step_of_a_walk_that_makes_no_sense_is_left_out(vocabulary: Vocabulary) -> None:
    walk = make_walk(["rewind()", 'edit(0, command="x")', "drop_exchange(3)", "go_on(); work()"])
    cell = await make_trial(vocabulary).run_cell(walk, "neutral")
    assert cell.state == "clean"
    assert len(cell.turns) == 2


# --- reports --------------------------------------------------------------------------------------


async def test_a_report_tells_of_a_failure_and_escapes_it(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario], tmp_path: Path
) -> None:
    gateway = EditsAreUndone
    trial = make_trial(vocabulary, gateway)
    chosen = [scenarios[name] for name in ("redacted", "linear", "control_in_user")]
    cells, _ = await trial.run(chosen, ["neutral"])
    run = describe_run(cells, vocabulary, gateway="<script>alert(1)</script>")
    assert [cell["state"] for cell in run["cells"]] == ["wrong", "clean", "clean"]
    assert run["exit_code"] == 1
    assert describe_run(cells[1:], vocabulary, gateway="g")["exit_code"] == 0
    file = tmp_path / "out.json"
    file.write_text(json.dumps(run))
    story = "\n".join(explain(read_run(file), "redacted"))
    assert "disobeyed: request 2: " in story
    assert "The key is [redacted]." in story
    assert "the prompt, as the engine saw it:" in story
    page = write_page(run)
    assert "<script>" not in page
    assert "WRONG disobeyed 2" in page
    with pytest.raises(RefereeError, match="it has control_in_user, linear, redacted"):
        list(explain(run, "nothing"))
    file.write_text("{}")
    with pytest.raises(RefereeError, match="is no file of `referee run --out`"):
        read_run(file)


async def test_the_first_token_that_differs_is_named(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    gateway = TokensAreFlipped
    cells, _ = await make_trial(vocabulary, gateway).run([scenarios["linear"]], ["neutral"])
    (cell,) = describe_run(cells, vocabulary, gateway="g")["cells"]
    assert "the same up to token 0: then it has '<|im_start|>system" in "\n".join(cell["story"])


def test_calls_are_joined_where_one_goes_on_from_another() -> None:
    file = Path(__file__).parents[4] / "examples" / "referee" / "join_calls.py"
    join_calls = runpy.run_path(str(file))["join_calls"]
    calls = [([1, 2], [3], [-0.5]), ([1, 2, 3, 4], [5], [-0.25]), ([7], [8], [-1.0])]
    first, second = read_samples(join_calls(calls))
    assert (first.tokens, first.mask) == ((1, 2, 3, 4, 5), (0, 0, 1, 0, 1))
    assert first.logprobs == (0.0, 0.0, -0.5, 0.0, -0.25)
    assert second.tokens == (7, 8)
    assert read_samples(join_calls([([1], [2], None)]))[0].logprobs is None
