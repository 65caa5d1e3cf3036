"""A run's use is summed over all its attempts, and priced where the configuration has prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.observe.figures.cost import count_gpus, format_amount, format_price, read_cost
from runners.observe.report.comparison import compare_runs
from runners.records.store.run_store import RunStore
from runners.system.processes.cpu_time import CPU_S
from tests.fakes.records import a_rollout, write_session

PRICES = [
    *("observe.prices.sandbox_hour=2", "observe.prices.input_token_million=1000"),
    "observe.prices.output_token_million=0",
]
HELD = {"queue": 900.0, "boot": 100.0, "harness": 600.0, "patch": 50.0, "grade": 1000.0}


def make_run(run_dir: Path, settings: list[str]) -> RunStore:
    """Make a run of a task that is solved twice, and of one whose first attempt was lost."""
    store = RunStore.create(run_dir, compose(settings).model_dump(mode="json"))
    store.begin_step(1, ["sum-of-squares-001"])
    timings = HELD | {"teardown": 50.0, "total": 9e9}
    one = a_rollout(timings=timings)
    again = a_rollout("train-000001-00-01", timings=timings)
    lost = replace(again, attempt=1, session_id="s", counts=False, solved=None, timings=timings)
    other = a_rollout("train-000001-01-00", task_id="other", solved=False, timings={})
    for record in (one, again, lost, other):
        write_session(store, record.session_id, 2)
        store.put_rollout(record)
    return store


def test_all_attempts_count_and_only_what_has_a_price_is_priced(tmp_path: Path) -> None:
    with make_run(tmp_path / "run", PRICES) as store:
        cost = read_cost(store, store.config(), wall_s=7200.0)
        turns = [turn for (name,) in store.query("SELECT session_id FROM session")
                 for turn in store.turns(name)]  # fmt: skip
    assert cost.sandbox_hours == pytest.approx(3 * 1800 / 3600)
    assert cost.prompt_tokens == sum(turn.usage["prompt_tokens"] for turn in turns)
    assert cost.sampled_tokens == sum(turn.output_tokens for turn in turns) > 0
    assert (cost.run_hours, cost.gpu_hours, cost.tasks_solved) == (2.0, None, 1)
    tokens = cost.prompt_tokens / 1000
    assert cost.priced == pytest.approx(
        {"sandbox_hour": 3.0, "input_token_million": tokens, "output_token_million": 0.0}
    )
    assert cost.total == cost.per_solved_task == pytest.approx(3.0 + tokens)


def test_cpu_hours_are_those_that_were_measured(tmp_path: Path) -> None:
    with make_run(tmp_path / "run", []) as store:
        unknown = read_cost(store, store.config(), wall_s=3600.0)
        measured = a_rollout("train-000001-02-00", extra={CPU_S: 1800.0})
        store.put_rollout(measured)
        store.put_rollout(replace(measured, rollout_id="train-000001-02-01", session_id="s2"))
        known = read_cost(store, store.config(), wall_s=3600.0)
    assert (unknown.cpu_hours, unknown.cpu_attempts) == (None, (0, 3))
    assert ("CPU hours in them", "not known") in list(unknown.describe())
    assert (known.cpu_hours, known.cpu_attempts) == (1.0, (2, 5))


def test_a_run_without_prices_says_what_it_used(tmp_path: Path) -> None:
    with make_run(tmp_path / "run", []) as store:
        cost = read_cost(store, store.config() | {"observe": {}}, wall_s=0.0)
    assert cost.total is None
    assert cost.per_solved_task is None


def test_gpus_that_are_not_known_are_not_priced_as_free(tmp_path: Path) -> None:
    prices = ["observe.prices.gpu_hour=3"]
    with make_run(tmp_path / "run", prices) as store:
        config = store.config()
        unknown = read_cost(store, config, wall_s=3600.0)
        config["trainer"] |= {"device": "cuda", "devices": 2}
        known = read_cost(store, config, wall_s=3600.0)
    assert (unknown.priced, unknown.total) == ({}, None)
    assert known.priced == {"gpu_hour": 6.0}


def test_compare_has_the_cost_of_each_run(tmp_path: Path) -> None:
    for name, settings in (("one", PRICES), ("two", [])):
        make_run(tmp_path / name, settings).close()
    runs = compare_runs([tmp_path / "one", tmp_path / "two"])["runs"]
    assert runs[0]["cost"]["per_solved_task"] > 3
    assert runs[1]["cost"]["total"] is None


@pytest.mark.parametrize(
    ("config", "gpus"),
    [
        ({"launch": {"nodes": 4, "gpus_per_node": 8}, "trainer": {}}, 32),
        ({"launch": {"kind": "local"}, "trainer": {"device": "cuda", "devices": 2}}, 2),
        ({"launch": {"kind": "local"}, "trainer": {"device": "auto", "devices": 2}}, 0),
    ],
)
def test_gpus_are_those_of_the_job_or_of_the_trainer(config: dict[str, Any], gpus: int) -> None:
    assert count_gpus(config) == gpus


@pytest.mark.parametrize(
    ("price", "text"), [(0.0, "0.00"), (0.0012345, "0.00123"), (12345.6, "12,345.60")]
)
def test_a_price_is_no_power_of_ten_and_a_small_one_keeps_its_digits(
    price: float, text: str
) -> None:
    assert format_price(price) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        *((None, "not known"), (0.0332, "0.0332"), (99.9, "99.9"), (99.96, "100")),
        *((20480.5, "20,480"), (1_234_567, "1,234,567")),
    ],
)
def test_an_amount_of_a_large_job_is_no_power_of_ten(amount: float | None, text: str) -> None:
    assert format_amount(amount) == text
