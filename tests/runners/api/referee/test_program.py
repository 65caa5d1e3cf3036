"""Scenarios as text, random walks, and what a run reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.referee.adapters import ReferenceGateway, join_calls, read_samples
from agentrl.referee.conversation import RefereeError, Words, find_words
from agentrl.referee.engine import CueEngine
from agentrl.referee.mutants import make_mutants
from agentrl.referee.program import Scenario, read_scenarios
from agentrl.referee.reference import PerfectGateway
from agentrl.referee.report import describe_run, explain, find_exit_code, read_run, write_page
from agentrl.referee.trial import Trial, collect
from agentrl.referee.vocabulary import Vocabulary
from agentrl.referee.walks import find_failure, make_walk


def make_trial(vocabulary: Vocabulary, gateway: type[PerfectGateway] = PerfectGateway) -> Trial:
    engine = CueEngine(vocabulary)
    return Trial(ReferenceGateway(lambda: gateway(engine)), engine, vocabulary, seed=0)


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
        ("a / b: c\n    import os\n", "is no step"),
        ("a / b: c\n    exec('1')\n", "there is no step exec"),
        ("a / b: c\n    together([os.system('x')], [exec('1')])\n", "there is no step"),
        ("a / b: c\n    history.clear()\n", "there is no step clear"),
        ("a / b: c\n    make_branch()\n", "there is no step make_branch"),
        ("a / b: c\n    _script(1)\n", "there is no step _script"),
        ("a / b: c\n    user(__import__('os').name)\n", "malformed node"),
        ("a / b: c\n    cut(nothing=1)\n", "missing a required argument"),
        ("a / b: c\n    branch()\n", "missing a required argument"),
        ("a / b: c\n    end()\na / b: c\n    end()\n", "a name that was used"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "scenarios.txt"
    file.write_text(text)
    with pytest.raises(RefereeError, match=wanted):
        read_scenarios(file)


def test_words_are_never_used_twice_and_never_parts_of_each_other() -> None:
    words = Words(12345)
    made = [words.new() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert find_words("".join(made)) == set(made)
    assert words.fill({"a": ["{w}", 5]})["a"][0] not in made


# --- walks ----------------------------------------------------------------------------------------


async def test_random_programs_find_nothing_in_a_perfect_gateway(vocabulary: Vocabulary) -> None:
    assert await find_failure(make_trial(vocabulary), "neutral", examples=25, seed=1) is None


async def test_a_failure_is_a_program_of_at_most_ten_lines(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    _, gateway = make_mutants()["edits of texts are undone"]
    cell = await find_failure(make_trial(vocabulary, gateway), "neutral", examples=100, seed=1)
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
    walk = make_walk(["rewind()", "edit_call(0)", "drop_exchange(3)", "go_on(); work()"])
    cell = await make_trial(vocabulary).run_cell(walk, "neutral")
    assert cell.state == "clean"
    assert len(cell.turns) == 2


# --- reports --------------------------------------------------------------------------------------


async def test_a_report_tells_of_a_failure_and_escapes_it(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario], tmp_path: Path
) -> None:
    _, gateway = make_mutants()["edits of texts are undone"]
    trial = make_trial(vocabulary, gateway)
    chosen = [scenarios[name] for name in ("redacted", "linear", "control_in_user")]
    cells, _ = await collect(trial, chosen, ["neutral"])
    run = describe_run(cells, vocabulary, gateway="<script>alert(1)</script>", date="today")
    assert [cell["state"] for cell in run["cells"]] == ["wrong", "clean", "clean"]
    assert (run["exit_code"], find_exit_code(cells[1].judgement.scores)) == (1, 0)
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
    _, gateway = make_mutants()["a token of the prompt is another one"]
    cells, _ = await collect(make_trial(vocabulary, gateway), [scenarios["linear"]], ["neutral"])
    (cell,) = describe_run(cells, vocabulary, gateway="g", date="today")["cells"]
    assert "up to token 0; there the engine had '<|im_start|>system" in cell["differences"][0]


def test_calls_are_joined_where_one_goes_on_from_another() -> None:
    calls = [([1, 2], [3], [-0.5]), ([1, 2, 3, 4], [5], [-0.25]), ([7], [8], [-1.0])]
    first, second = read_samples(join_calls(calls))
    assert (first.tokens, first.mask) == ((1, 2, 3, 4, 5), (0, 0, 1, 0, 1))
    assert first.logprobs == (0.0, 0.0, -0.5, 0.0, -0.25)
    assert second.tokens == (7, 8)
    assert read_samples(join_calls([([1], [2], None)]))[0].logprobs is None
