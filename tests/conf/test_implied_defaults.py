"""Defaults of a choice for other sections: precedence, origins, no number that leaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conf.compose import compose, compose_with_origins, to_json, to_yaml
from conf.errors import ConfigError
from conf.implied_defaults import ORDER, OTHER_SECTIONS, imply_choices
from conf.keys import choice_content, choice_file, default_choices, flatten, groups, lookup
from conf.schema import Config
from conf.sections.task import VerdictRewardConfig

SERVED = ["engine=sglang", "engine.url=http://h", "model.tokenizer=t", "model.renderer=qwen3"]
LAYERS = [
    (group, choice)
    for group, names in groups().items()
    for choice in names
    if OTHER_SECTIONS in choice_file(group, choice)
]


def value(config: Config, key: str) -> object:
    return dict(flatten(config.model_dump(mode="json")))[key]


def test_only_groups_with_a_precedence_have_values_for_other_sections() -> None:
    assert {group for group, _ in LAYERS} == set(ORDER)


def conditional_keys(
    content: dict[str, Any], conditions: dict[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the keys of a section of defaults, each with the choices that it needs."""
    for name, value in content.items():
        other, is_condition, wanted = name.partition("=")
        if is_condition:
            yield from conditional_keys(value, conditions | {other: wanted})
        else:
            yield name, conditions


@pytest.mark.parametrize(("group", "choice"), LAYERS)
def test_every_value_for_another_section_is_one_of_its_keys(group: str, choice: str) -> None:
    content = choice_file(group, choice)[OTHER_SECTIONS]
    for key, conditions in conditional_keys(content, {group: choice}):
        section = key.partition(".")[0]
        assert section != group or len(conditions) > 1, f"{key} belongs in the file itself"
        choices = default_choices() | conditions
        if section in groups() and "." in key:
            known = lookup(choice_content(section, choices[section]), key.partition(".")[2])[0]
            assert known, f"{key} needs a condition: {section}={choices[section]} has no such key"


@pytest.mark.parametrize("scenario", groups()["scenario"])
def test_the_tiny_policy_of_a_scenario_is_the_same_for_every_task(scenario: str) -> None:
    own_rows = ["task=jsonl", "task.path=rows.jsonl", "model=tiny"]
    chosen = f"scenario={scenario}"
    assert compose([chosen, *own_rows]).model == compose([chosen]).model


def test_the_model_wins_over_the_harness_and_the_command_line_over_both() -> None:
    key = "harness.max_turns"
    real = ["harness=native", *SERVED]
    assert value(compose(real), key) == 100
    assert value(compose([]), key) == 8
    assert value(compose(["harness.max_turns=9"]), key) == 9


def test_the_tiny_models_limits_are_for_its_own_task() -> None:
    calibration = compose(["task=swebench"])  # no model is chosen: `eval swebench --gold`
    assert value(calibration, "rollout.deadlines.grade_s") == 1800
    assert value(calibration, "sandbox.memory_mb") == 4096
    assert value(compose([]), "rollout.deadlines.grade_s") == 30


def test_a_stored_configuration_wins_over_the_defaults_of_choices() -> None:
    stored = compose(["run.steps=7", "sampling.temperature=0.5"]).model_dump(mode="json")
    config = compose(["sampling.temperature=0.6"], base=stored)
    assert (config.run.steps, config.sampling.temperature) == (7, 0.6)


def test_a_server_is_not_taken_for_one_of_the_tiny_model() -> None:
    assert compose(SERVED).model.kind == "local"
    with pytest.raises(ConfigError) as caught:
        compose(SERVED[:2])
    assert [fault.partition(" ")[0] for fault in caught.value.faults] == [
        "model.tokenizer",
        "model.renderer",
    ]
    assert compose([*SERVED[:2], "model=tiny"]).model.kind == "tiny"


def test_a_choice_that_somebody_made_is_kept() -> None:
    assert imply_choices(default_choices(), {"engine": "sglang", "model": "tiny"}) == {}
    implied = imply_choices(default_choices(), {"engine": "sglang"})
    assert implied == {"model": ("local", "engine=sglang")}


def test_every_value_has_an_origin() -> None:
    overrides = [*SERVED, "harness=codex", "run={steps:3}", "trainer.betas=[0.9,0.95]"]
    base = {"seed": 4, "run": {"eval_tasks": 0}}
    config, origins = compose_with_origins(overrides, base=base)
    keys = {key for key, _ in flatten(config.model_dump(mode="json"))}
    assert keys <= origins.keys()
    wanted = {
        "seed": "--config",
        "run.steps": "command line",
        "run.eval_tasks": "--config",
        "trainer.betas": "command line",
        "engine.kind": "command line",
        "engine.workers": "engine=sglang",
    }
    assert {key: origins[key] for key in wanted} == wanted


def test_an_origin_is_the_choice_and_the_key_that_a_value_follows() -> None:
    origins = compose_with_origins([*SERVED, "harness=codex", "task=swebench"])[1]
    assert origins["model.max_context_tokens"] == "harness=codex"
    assert origins["sampling.eval_temperature"] == "task=swebench"
    assert origins["sampling.temperature"] == "default"
    assert origins["sandbox.memory_mb"] == "sandbox=local: ${harness.memory_mb}"
    assert origins["harness.kind"] == "command line"
    assert origins["task.kind"] == "command line"
    assert origins["launch.kind"] == "default"


def test_shown_yaml_has_the_origin_beside_each_value() -> None:
    config, origins = compose_with_origins(["run.steps=3", "trainer.betas=[0.5,0.6]"])
    shown = to_yaml(config, origins).splitlines()
    for line, origin in (
        ("  steps: 3", "command line"),
        ("  temperature: 0.8", "model=tiny"),
        ("  eval_tasks: 128", "task=bugfix"),
        ("  betas:", "command line"),
        ("    boot_s: 20.0", "model=tiny"),
    ):
        assert [each for each in shown if each.split("  # ") == [f"{line:44}", origin]], line
    assert "  - 0.5" in shown


def test_the_toy_numbers_stay_with_the_tiny_model() -> None:
    toy = dict(flatten(choice_file("model", "tiny")[OTHER_SECTIONS]))
    toy = {
        key.rpartition("=")[2].partition(".")[2] if "=" in key else key: v
        for key, v in reversed(toy.items())  # a scenario's own number does not hide the others'
    }
    for harness, task in [*((each, "jsonl") for each in groups()["harness"]), ("pi", "swebench")]:
        path = ["task.path=t.jsonl"] if task == "jsonl" else []
        path += {
            "custom": ["harness.target=agents:Own"],
            "command": ["harness.run=agent"],
        }.get(harness, [])
        config = compose([*SERVED, f"harness={harness}", f"task={task}", *path])
        for key, number in toy.items():
            if key.startswith("scenario."):
                continue
            found = dict(flatten(config.model_dump(mode="json"))).get(key)
            assert found != number, f"{key}={number} with harness={harness} task={task}"


@pytest.mark.parametrize("kind", ["compact", "mixed"])
def test_a_real_model_summarises_above_five_sixths_of_its_window(kind: str) -> None:
    config = compose([*SERVED, "harness=claude_code", f"scenario={kind}"])
    assert value(config, "scenario.window_tokens") == 80000
    assert value(config, "model.max_context_tokens") == 96000


def test_the_caps_of_segments_are_those_of_the_reference_systems() -> None:
    for fanout, wanted in (
        ("segments", {"max_segment_tokens": 96000, "long_final": "cut", "max_segments": 8}),
        ("collapse", {"max_segment_tokens": 96000, "long_final": "cut"}),
    ):
        config = compose([*SERVED, "harness=codex", f"fanout={fanout}"])
        assert wanted.items() <= config.fanout.model_dump().items()


def test_the_default_reward_of_a_real_model_is_1_or_0() -> None:
    reward = compose([*SERVED, "harness=claude_code"]).reward
    assert isinstance(reward, VerdictRewardConfig)
    penalties = (reward.turn_penalty, reward.length_penalty, reward.malformed_penalty)
    assert (reward.solved, reward.unsolved, *penalties) == (1.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "shaping",
    [
        ["reward.turn_penalty=1"],
        ["reward.turn_penalty=0.5", "reward.length_penalty=0.3", "reward.malformed_penalty=0.2"],
        ["reward.unsolved=1", "reward.turn_penalty=0.0"],
    ],
)
def test_a_reward_that_can_make_giving_up_beat_solving_is_refused(shaping: list[str]) -> None:
    with pytest.raises(ConfigError, match="giving up at once would pay at least as much"):
        compose([*SERVED, *shaping])


@pytest.mark.parametrize(
    "shaping",
    [
        ["reward.partial_credit=1"],
        ["reward.partial_credit=0.6", "reward.turn_penalty=0.3", "reward.length_penalty=0.1"],
        ["reward.unsolved=-1", "reward.partial_credit=2.5"],
    ],
)
def test_partial_credit_that_could_pay_as_much_as_solving_is_refused(shaping: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([*SERVED, *shaping])
    (fault,) = caught.value.faults
    assert fault.startswith("reward.unsolved=")
    assert fault.endswith("could pay as much as solving it; lower reward.partial_credit")


def test_partial_credit_below_the_least_reward_of_solving_is_taken() -> None:
    shaping = ["reward.partial_credit=0.59", "reward.turn_penalty=0.3", "reward.length_penalty=0.1"]
    reward = compose([*SERVED, *shaping]).reward
    assert isinstance(reward, VerdictRewardConfig)
    assert reward.partial_credit == 0.59


def test_a_stored_configuration_may_have_a_retired_key_where_it_did_nothing() -> None:
    stored = compose([]).model_dump(mode="json")
    stored["reward"]["partial"] = False
    assert compose([], base=stored) == compose([])
    stored["reward"]["partial"] = True
    with pytest.raises(ConfigError, match=r"reward\.partial.*reward\.partial_credit"):
        compose([], base=stored)


def test_a_faulty_value_that_others_follow_is_the_only_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        compose([*SERVED, "model.max_context_tokens=many", "scenario=mixed"])
    (fault,) = caught.value.faults
    assert fault == "model.max_context_tokens=many must be a whole number"


def test_json_of_every_layer_is_accepted_back() -> None:
    config = compose([*SERVED, "harness=claude_code", "scenario=mixed"])
    assert compose([], base=config.model_dump(mode="json")) == config
    assert '"window_tokens": 80000' in to_json(config)
