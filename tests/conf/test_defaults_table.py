"""The deciding numbers: of every combination, and none of the tiny policy's outside of it."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.defaults_table import AXES, Combination, find_combinations, list_axis
from conf.keys import groups
from conf.plan_numbers import find_key_numbers

REAL = [
    (harness, model)
    for harness in list_axis("harness")
    for model in groups()["model"]
    if model != "tiny"
]


def check_real(found: Combination) -> None:
    if found.model == "local" and found.launch != "local":
        assert "model=local is not in the table that trainer=slime" in found.refused[0]
        return
    if found.model == "endpoint" and found.launch != "local":
        assert any("engine=openai is not asked with trainer" in each for each in found.refused)
        return
    numbers = found.numbers
    assert numbers is not None, found.refused
    assert numbers.window >= 32768
    assert numbers.tokens_per_turn >= 16384
    assert numbers.turns >= 100
    assert numbers.deadline_s >= 1800
    assert numbers.reward == "1 or 0"


@pytest.mark.parametrize(("harness", "model"), REAL)
def test_no_number_of_the_tiny_policy_reaches_another_model(harness: str, model: str) -> None:
    launch = groups()["launch"][REAL.index((harness, model)) % len(groups()["launch"])]
    only = {"harness": [harness], "model": [model], "launch": [launch]}
    (found,) = find_combinations(only)
    check_real(found)


@pytest.mark.slow
@pytest.mark.parametrize(("harness", "model"), REAL)
def test_no_number_of_the_tiny_policy_leaks_with_any_launcher(harness: str, model: str) -> None:
    found = list(find_combinations({"harness": [harness], "model": [model]}))
    assert [each.launch for each in found] == list(groups()["launch"])
    for each in found:
        check_real(each)


@pytest.mark.parametrize("harness", ["native", "claude_code", "codex"])
def test_no_window_of_the_tiny_policy_reaches_another_model(harness: str) -> None:
    only = {"harness": [harness], "model": ["glm4_7_355b_a32b"], "launch": ["slurm"]}
    (found,) = find_combinations(only, ["scenario=mixed"])
    assert found.numbers is not None
    assert found.numbers.summary_above == 32768 * 5 // 6


def test_the_tiny_policy_has_its_own_numbers_and_runs_on_this_machine_only() -> None:
    only = {"harness": ["native"], "model": ["tiny"], "launch": ["local", "slurm"]}
    found = {each.launch: each for each in find_combinations(only)}
    numbers = found.pop("local").numbers
    assert numbers is not None
    assert (numbers.window, numbers.tokens_per_turn, numbers.deadline_s) == (1024, 96, 120)
    assert all(each.numbers is None and each.refused for each in found.values())


@pytest.mark.parametrize("harness", ["claude_code", "codex"])
def test_a_window_that_does_not_hold_an_agent_s_first_prompt_is_refused(harness: str) -> None:
    (found,) = find_combinations({"harness": [harness], "model": ["tiny"], "launch": ["local"]})
    assert found.numbers is None
    (fault,) = found.refused
    assert f"is less than the first prompt of harness={harness}" in fault


def test_an_axis_takes_the_choices_that_are_named() -> None:
    only = {"harness": ["codex"], "model": ["tiny", "local"], "launch": ["local"]}
    found = [(each.harness, each.model) for each in find_combinations(only)]
    assert found == [("codex", "tiny"), ("codex", "local")]
    assert AXES == ("harness", "model", "launch")


def test_numbers_are_described_with_their_units() -> None:
    numbers = find_key_numbers(compose(["scenario=mixed", "reward.length_penalty=0.1"]))
    assert numbers.line() == (
        "window 1,024 tokens, summary above 320 · tokens per turn 96 · turns 8 · deadline 120 s · "
        "reward 1 or 0, − 0.1 for 1,024 tokens, − 0.5 for a malformed call"
    )


def test_tokens_per_turn_are_what_both_the_agent_and_the_policy_may() -> None:
    for line, wanted in (
        ("harness.max_tokens=50", 50),
        ("sampling.max_new_tokens=40", 40),
    ):
        assert find_key_numbers(compose([line])).tokens_per_turn == wanted


def test_a_combination_keeps_every_fault() -> None:
    found = list(find_combinations({"harness": ["native"], "model": ["tiny"], "launch": ["ssh"]}))
    assert isinstance(found[0], Combination)
    assert len(found[0].refused) >= 1
