"""A driver's lines of metrics are those of a reader that begins anew, and cost what is new."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runners.observe.adviser.adviser import advise
from runners.observe.adviser.history import (
    DUPLICATES,
    JUDGED,
    History,
    StepFacts,
    class_of,
    read_history,
)
from runners.observe.adviser.metric_lines import LATE_STEPS, STALENESS, MetricLines
from runners.observe.figures.metrics import MetricsWriter
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.text import loads
from tests.fakes.illnesses import ILLNESSES, infect
from tests.fakes.recorded_runs import healthy_runs
from tests.fakes.records import CONFIG, a_rollout

ENDS = ("policy.finished", "budget.turns", "grader.error", "infra.model")


class NotingMetrics(dict[str, Any]):
    """Metrics that remember what was asked of them."""

    asked: ClassVar[set[str]] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Remember the key."""
        self.asked.add(key)
        return super().get(key, default)


def finish(store: RunStore, dice: random.Random, step: int, code: str = "") -> None:
    """Finish a step of four rollouts, with figures that make alarms likely."""
    store.begin_step(step, ["task"])
    for member in range(4):
        record = a_rollout(f"train-{step:06}-00-{member:02}")
        store.put_rollout(record)
        store.database.execute(
            "UPDATE rollout SET code = ? WHERE session_id = ?",
            (code or dice.choice(ENDS), record.session_id),
        )
    solved, entropy = dice.choice((0.0, 0.1, 0.6)), dice.choice((0.001, 0.3, 3.0))
    store.finish_step(step, {"train/solve_rate": solved, "policy/entropy": entropy, "other": step})


@pytest.mark.parametrize("seed", range(3))
def test_lines_that_are_read_as_a_run_goes_on_are_those_of_a_new_reader(
    seed: int, tmp_path: Path
) -> None:
    """Also where figures, evaluations and ends of rollouts come late."""
    dice = random.Random(seed)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        lines, file = MetricLines(store), MetricsWriter(tmp_path, tensorboard=False)
        file.rewrite(lines.read())
        for step in range(1, 25):
            finish(store, dice, step)
            late = dice.randint(max(1, step - LATE_STEPS - STALENESS + 1), step)
            match dice.randrange(4):
                case 0:
                    store.add_metrics(late, {"policy/k3": dice.choice((0.001, 0.5))})
                case 1 if step not in {row.step for row in store.evaluations()}:
                    store.finish_evaluation(step, {"solve_rate": dice.random()})
                case 2:
                    store.put_rollout(a_rollout(f"train-{late:06}-01-{step % 8:02}"))
            if dice.random() < 0.7:
                assert lines.read_step(step) == MetricLines(store).read()[-1]
            if dice.random() < 0.3:
                assert lines.read() == MetricLines(store).read()
            if dice.random() < 0.6:
                assert file.replace_tail(lines.read_tail())
                written = (tmp_path / "metrics.jsonl").read_text().splitlines()
                assert [loads(line) for line in written] == MetricLines(store).read()
        assert lines.read() == MetricLines(store).read()
        assert lines.latest_alarms() == advise(read_history(store))


def test_the_tail_has_every_line_that_is_judged_anew(tmp_path: Path) -> None:
    """Duplicates are an alarm of the first step, however late they are found."""
    dice = random.Random(0)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        lines = MetricLines(store)
        for step in range(1, 31):
            finish(store, dice, step)
        assert len(lines.read_tail()) == 30
        finish(store, dice, 31)
        assert 1 < len(lines.read_tail()) < 31
        counts = {"tasks": 20, "train": 9, "held_out": 4, "example": ["a", "b"]}
        store.event(DUPLICATES, counts)
        lines.read_step(31)  # which is another's reading
        assert lines.read_tail() == MetricLines(store).read()


def test_steps_that_can_change_no_more_are_not_judged_again(tmp_path: Path) -> None:
    dice = random.Random(0)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        lines = MetricLines(store)
        for step in range(1, 31):
            finish(store, dice, step, "policy.finished")
        known = lines.read()
        store.database.execute("UPDATE rollout SET code = 'infra.model' WHERE step < 4")
        finish(store, dice, 31, "policy.finished")
        assert lines.read()[:30] == known != MetricLines(store).read()[:30]


def test_a_step_that_is_finished_very_late_has_its_line(tmp_path: Path) -> None:
    dice = random.Random(0)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        lines = MetricLines(store)
        for step in (1, *range(3, 40)):
            finish(store, dice, step)
            lines.read_tail()
        with pytest.raises(StoreError, match="has no finished step 2"):
            lines.read_step(2)
        finish(store, dice, 2)
        assert lines.read_tail() == MetricLines(store).read()[1:]
        assert lines.read_step(2) == MetricLines(store).read()[1]
        assert lines.read() == MetricLines(store).read()


def test_an_outcome_of_a_newer_version_is_of_its_class(tmp_path: Path) -> None:
    assert class_of("infra.weather") == "infra"
    assert class_of("weather.rain") is None
    dice = random.Random(0)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for step, code in enumerate(("budget.water", "infra.weather", "weather.rain") * 3, 1):
            finish(store, dice, step, code)
            advise(read_history(store))
        for code in ("budget.water", "infra.weather"):
            store.database.execute("UPDATE rollout SET code = ?", (code,))
            assert any(code in alarm.evidence for alarm in advise(read_history(store)))


def test_the_illnesses_ask_for_no_metric_that_is_not_kept() -> None:
    runs = healthy_runs()
    for history in (runs["well-linear-0a"], runs["well-mixed-0c"]):
        for name in (None, *ILLNESSES):
            ill = history if name is None else infect(history, name, 2)
            steps = [
                StepFacts(each.step, NotingMetrics(each.metrics), each.outcomes, each.replaced)
                for each in ill.steps
            ]
            for step in steps:
                advise(History(ill.config, steps, ill.duplicates).until(step.step))
    assert NotingMetrics.asked == JUDGED
