"""Fault plans as configuration: allowed pairs, the user's own files, resuming."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import get_args

import pytest

from conf.compose import compose, from_json, to_json
from conf.errors import ConfigError
from conf.fault_table import ALLOWED, Boundary, FaultKind, validate_rule
from conf.resume import resume_config

PLANS = ["none", "flaky_sandbox", "flaky_engine", "slow", "chaos"]


def with_file(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return ["faults=file", f"faults.path={path}"]


def faults(overrides: list[str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return caught.value.faults


def default_fields(what: FaultKind) -> tuple[float | None, int | None]:
    return (1.0 if what in ("delay", "clock_jump") else None), (503 if what == "status" else None)


def test_the_table_has_every_boundary_and_every_kind() -> None:
    assert set(ALLOWED) == set(get_args(Boundary))
    assert set().union(*ALLOWED.values()) == set(get_args(FaultKind))


def test_exactly_the_pairs_of_the_table_are_allowed() -> None:
    for where, what in itertools.product(get_args(Boundary), get_args(FaultKind)):
        fault = validate_rule(where, what, *default_fields(what))
        assert (fault is None) == (what in ALLOWED[where]), (where, what)


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_that_comes_with_agentrl_composes(plan: str) -> None:
    section = compose([f"faults={plan}"]).faults
    assert section.kind == plan
    assert bool(section.rules) == (plan != "none")


def test_chaos_mixes_most_kinds_of_faults_at_most_boundaries() -> None:
    rules = compose(["faults=chaos"]).faults.rules or ()
    assert {rule.where for rule in rules} >= {
        *("session", "sandbox_boot", "exec", "turn", "finish", "patch", "grade", "teardown"),
    }
    assert {rule.what for rule in rules} == set(get_args(FaultKind))


def test_all_errors_of_a_file_are_reported_at_once_with_their_rules(tmp_path: Path) -> None:
    text = """
seed: 3
rules:
  - {where: grade, what: abort}
  - {where: turn, what: status, status: 404}
  - {where: turn, what: status}
  - {where: turn, what: delay}
  - {where: turn, what: error, seconds: 1}
  - {where: turn, what: delay, seconds: -1}
  - {where: turn, what: error, status: 503}
  - {where: trun, what: error}
  - {where: turn, what: error, when: {k: 0, prob: 2}}
  - {where: turn, what: error, when: {probability: 1.5}}
"""
    found = faults(with_file(tmp_path / "plan.yaml", text))
    for part in (
        "faults.rules[0]={where:grade,what:abort} cannot be: abort does not happen at",
        "has status=404: a fault is 429 or 500 to 599",
        "lacks status: 429 or 500 to 599",
        "lacks seconds: how long the delay is",
        "has seconds, which error does not take: drop it",
        "only a clock_jump goes back in time",
        "error takes no status",
        "faults.rules[7].where=trun must be session, sandbox_boot,",
        "faults.rules[8].when.k=0 must be greater than 0",
        "faults.rules[8].when.prob is not a key",
        "faults.rules[9].when.probability=1.5 must be at most 1",
    ):
        assert len([fault for fault in found if part in fault]) == 1, (part, found)
    assert len(found) == 11


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("seed: 1\n", "has no rules: write them as conf/faults/chaos.yaml does"),
        ("- 1\n", "has no rules"),
        ("rules: [\n", "cannot be read"),
        ("rules: []\nfoo: 1\n", "has foo: a plan is a seed and rules"),
    ],
)
def test_a_file_that_is_not_a_plan_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    (found,) = faults(with_file(tmp_path / "plan.yaml", text))
    assert found.startswith(f"faults.path={tmp_path / 'plan.yaml'} ")
    assert fault in found


def test_faults_in_tools_need_the_agent_whose_tools_are_ours(tmp_path: Path) -> None:
    overrides = with_file(tmp_path / "plan.yaml", "rules: [{where: tool, what: error}]\n")
    compose(overrides)
    (found,) = faults([*overrides, "harness=claude_code"])
    assert found.startswith("faults.rules[0] injects into tools that agentrl runs itself")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    (found,) = faults(["faults=file", f"faults.path={tmp_path / 'none.yaml'}"])
    assert "cannot be read: [Errno 2] No such file" in found


def test_an_error_elsewhere_does_not_hide_those_of_the_file(tmp_path: Path) -> None:
    plan = with_file(tmp_path / "plan.yaml", "rules: [{where: dump, what: abort}]")
    assert len(faults([*plan, "seed=-1"])) == 2


def test_a_run_keeps_the_rules_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    plan = with_file(path, "seed: 7\nrules: [{where: turn, what: cut, when: {k: 2}}]")
    config = compose(plan)
    assert config.faults.seed == 7
    path.unlink()
    again = resume_config(json.loads(to_json(config)), [])
    assert again == config
    assert from_json(to_json(config), source="test") == config


def test_a_copy_of_a_plan_is_a_plan_file(tmp_path: Path) -> None:
    ours = compose(["faults=slow"]).faults
    text = (Path(__file__).parents[2] / "conf" / "faults" / "slow.yaml").read_text()
    assert compose(with_file(tmp_path / "plan.yaml", text)).faults.rules == ours.rules


def test_a_resumed_run_may_have_another_plan() -> None:
    stored = json.loads(to_json(compose(["faults=chaos"])))
    assert resume_config(stored, ["faults=none"]).faults.kind == "none"
