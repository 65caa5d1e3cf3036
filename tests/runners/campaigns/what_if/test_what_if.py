"""Other rules over stored rollouts: the figures are those of a campaign that had these rules."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from conf.compose import compose
from conf.errors import ConfigError, ExitCode
from runners.campaigns.overlap.events import Admit, Batch, to_row
from runners.campaigns.what_if.keys import WhatIfError, change_rules
from runners.campaigns.what_if.what_if import ask_what_if
from runners.records.store.run_store import RunStore
from runners.rollouts.reward import RewardParts
from runners.tasks.grading import RolloutResult
from tests.fakes.trained_run import draw_step, finish_step, train_run

PENALTIES = "reward.turn_penalty=0.1 reward.malformed_penalty=0.2"
RULES = {
    "default": "",
    "collapse": "fanout=collapse",
    "shares": "fanout.reward=token_share fanout.train_side=true",
    "capped": "fanout.max_segments=2",
    "rloo": "trainer.advantage=rloo",
    "step": "trainer.advantage=reinforce_pp_baseline",
    "rejection": "trainer.advantage=rejection trainer.accept_reward=0.5",
    "parts": f"trainer.advantage=gdpo {PENALTIES}",
    "turns": f"trainer.advantage=rloo trainer.credit=turn {PENALTIES}",
    "flat": "rollout.replace_flat=true",
    "unfinished": "trainer.train_unfinished=false",
    "tokens": "trainer.aggregation=token",
    "partial": "reward.partial_credit=0.3 trainer.min_group=4",
}


@pytest.fixture(scope="module", params=list(RULES))
def rules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run under one of the sets of rules, over the same rollouts as every other."""
    run = tmp_path_factory.mktemp(request.param) / "run"
    train_run(run, RULES[request.param].split()).close()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run under the default rules."""
    place = tmp_path_factory.mktemp("default") / "run"
    train_run(place).close()
    return place


def test_a_run_s_own_rules_reproduce_every_stored_advantage_bit_for_bit(rules: Path) -> None:
    found = ask_what_if(rules, [])
    assert (found.not_reproduced, found.changed, found.failures) == ([], {}, {})
    assert [each.before == each.after and not each.turned for each in found.steps] == [True, True]
    assert found.total[0].groups_with_gradient > 0


def test_other_rules_have_the_figures_of_a_run_that_had_them(rules: Path, run: Path) -> None:
    wanted = ask_what_if(rules, [])
    found = ask_what_if(run, RULES[rules.parent.name.rstrip("0123456789")].split())
    assert [each.after for each in found.steps] == [each.before for each in wanted.steps]
    assert found.not_reproduced == []


def test_rollouts_whose_advantage_has_another_sign_are_named(run: Path) -> None:
    found = ask_what_if(run, RULES["rejection"].split())
    with RunStore.open(run, read_only=True) as store:
        negative = {
            record.rollout_id
            for record in store.rollouts(split="train")
            if record.advantage is not None and record.advantage < 0
        }
    assert negative
    assert negative <= {name for each in found.steps for name in each.turned}
    assert found.total[1].tokens_down == 0


def test_every_key_that_a_store_cannot_answer_for_is_refused_by_name(run: Path) -> None:
    given = ["sampling.temperature=0.5", "trainer.kl.weight=0.1", "fanout=collapse"]
    with pytest.raises(ConfigError) as refused:
        ask_what_if(run, given)
    names = [fault.partition(":")[0] for fault in refused.value.faults]
    assert names == ["sampling.temperature", "trainer.kl.weight"]


def test_a_key_that_only_begins_like_an_answered_one_is_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"^rollout\.concurrency: "):
        ask_what_if(run, ["rollout.concurrency=3"])


def test_a_value_that_follows_neither_from_the_store_nor_from_the_rules_is_named(
    tmp_path: Path,
) -> None:
    with train_run(tmp_path / "run") as store:
        graded = [r for r in store.rollouts(split="train") if r.advantage]
        store.put_rollout(replace(graded[0], advantage=0.125))
        store.put_rollout(replace(graded[1], trained_tokens=1))
        store.put_rollout(replace(graded[2], reward=0.75))
    found = ask_what_if(tmp_path / "run", ["fanout=collapse"])
    assert found.exit_code is ExitCode.FAILURE_BUDGET
    names = [record.rollout_id for record in graded[:3]]
    # a changed reward changes the advantages of its group, too
    assert set(names) <= set(found.not_reproduced)


def test_a_stored_reward_that_its_verdict_does_not_make_is_named(tmp_path: Path) -> None:
    with train_run(tmp_path / "run", RULES["rejection"].split()) as store:
        solved = next(r for r in store.rollouts(split="train") if r.advantage)
        store.put_rollout(replace(solved, reward=2.0))  # accepted as before: the advantage stays
    assert ask_what_if(tmp_path / "run", []).not_reproduced == [solved.rollout_id]


def test_steps_that_are_not_finished_are_left_out(tmp_path: Path) -> None:
    with train_run(tmp_path / "run", ["run.steps=3"], steps=2) as store:
        config = compose([], base=store.config())
        store.begin_step(3, ["task-0"])
        for record in draw_step(store, config, 3, 1, 4, 6, 0):
            store.put_rollout(record)
    assert [each.step for each in ask_what_if(tmp_path / "run", []).steps] == [1, 2]


def test_a_run_that_trained_on_no_rollout_has_no_answer(tmp_path: Path) -> None:
    train_run(tmp_path / "run", steps=0, groups=1).close()
    with pytest.raises(WhatIfError, match="no finished step"):
        ask_what_if(tmp_path / "run", [])


def test_groups_of_an_asynchronous_run_are_those_of_its_schedule(tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = ["run.overlap=stream", "trainer.correction.truncate=token"]
    overrides += ["trainer.advantage=reinforce_pp_baseline"]
    with train_run(run, [*overrides, "run.steps=2"], steps=0, groups=2) as store:
        config = compose([], base=store.config())
        dealt = [draw_step(store, config, step, 2, 4, 6, 0) for step in (1, 2)]
        by_group = [r for records in dealt for r in records]
        groups = [by_group[start : start + 4] for start in range(0, 16, 4)]
        for number in range(4):
            store.log_schedule(*to_row(Admit(number)))
        for number, members in ((1, (0, 2)), (2, (1, 3))):
            store.begin_step(number, ["task"] * 2)
            store.log_schedule(*to_row(Batch(number, members, (0, 0))))
            finish_step(store, config, number, [r for each in members for r in groups[each]])
    found = ask_what_if(run, [])
    assert found.not_reproduced == []
    assert [(each.step, each.before.rollouts) for each in found.steps] == [(1, 8), (2, 8)]


def test_a_rollout_that_was_masked_at_the_time_stays_so(tmp_path: Path) -> None:
    with train_run(tmp_path / "run") as store:
        trained = next(r for r in store.rollouts(split="train") if r.trained_tokens)
        store.put_rollout(replace(trained, trained_tokens=0))
        reason = {"rollout_id": trained.rollout_id, "reason": "StoreError: its arrays are lost"}
        store.event("unbuilt", reason)
    found = ask_what_if(tmp_path / "run", ["trainer.advantage=rloo"])
    assert found.not_reproduced == []
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        stored = sum(r.trained_tokens for r in store.rollouts(split="train"))
    assert found.total[0].tokens_trained == stored


async def _pay_calls(result: RolloutResult) -> RewardParts:
    """Pay what a stored verdict and session say."""
    assert result.verdict is not None
    if result.verdict.tampered:
        raise ValueError("no pay for that")
    passed = result.verdict.fail_to_pass_passed
    return RewardParts({"passed": float(passed), "calls": float(result.summary.tool_calls_total)})


def test_a_plug_in_is_paid_by_what_is_stored_and_its_failures_are_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("own_pay")
    module.pay = _pay_calls  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_pay", module)
    found = ask_what_if(run, ["reward=custom", "reward.target=own_pay:pay"])
    with RunStore.open(run, read_only=True) as store:
        graded = [r for r in store.rollouts(split="train", counts=True) if r.reward is not None]
    tampered = {r.rollout_id for r in graded if r.verdict and r.verdict["tampered"]}
    assert tampered
    assert set(found.failures) == tampered
    assert found.reward_saw_less
    assert found.exit_code is ExitCode.DONE
    paid = [r for r in graded if r.rollout_id not in tampered]
    wanted = sum((r.verdict or {})["fail_to_pass"][0] + (r.tool_calls or r.turns) for r in paid)
    assert found.total[1].reward_sum == wanted
    assert (found.total[0].graded, found.total[1].graded) == (len(graded), len(paid))


def test_a_reward_that_fails_for_every_rollout_ends_with_exit_code_1(
    tmp_path: Path, run: Path
) -> None:
    (tmp_path / "pay.py").write_text("def pay(result):\n    return float('nan')\n")
    found = ask_what_if(run, ["reward=custom", f"reward.target={tmp_path / 'pay.py'}:pay"])
    assert (found.not_reproduced, found.total[1].graded) == ([], 0)
    assert len(found.failures) == found.total[0].graded
    assert found.exit_code is ExitCode.FAILURE_BUDGET


def test_rewards_of_a_run_s_own_plug_in_are_taken_as_stored_and_the_answer_says_so(
    tmp_path: Path, run: Path
) -> None:
    (tmp_path / "pay.py").write_text("def pay(result):\n    return result.summary.turns / 8\n")
    own = ["reward=custom", f"reward.target={tmp_path / 'pay.py'}:pay"]
    train_run(tmp_path / "own", own).close()
    found = ask_what_if(tmp_path / "own", [])
    assert (found.rewards_unchecked, found.not_reproduced) == (True, [])
    assert not ask_what_if(run, own).rewards_unchecked  # its own are computed again


def test_a_run_of_another_version_gets_todays_keys(tmp_path: Path) -> None:
    with train_run(tmp_path / "run") as store:
        stored = store.config()
        del stored["trainer"]["min_group"]
        store.replace_config(stored)
        rules = change_rules(store, [])
        assert rules.before == rules.after
        assert rules.before.trainer.min_group == compose([]).trainer.min_group
