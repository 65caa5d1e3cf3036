"""Measure the adviser: illnesses that it names within three steps, alarms in runs that are well.

    python -m tests.benchmarks.bench_adviser             recorded runs, each illness put into each
    python -m tests.benchmarks.bench_adviser --campaigns real small campaigns that are made ill, too

Recorded runs are real ones of several seeds, scenarios and ways to run
(``tests/fakes/recorded_runs.py``). Beside them, and reported apart, each is drawn anew: its steps'
figures that vary by chance are exchanged with those of neighbouring steps.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import agentrl
from runners.observe.adviser.adviser import advise
from runners.observe.adviser.history import History, read_history
from runners.records.store.run_store import RunStore
from tests.fakes.illnesses import ILLNESSES, double_tasks, infect
from tests.fakes.recorded_runs import healthy_runs

WITHIN = 3
FIRST = 4
"""Steps of a recorded run before it becomes ill."""
EXCHANGED = ("time/rollout_s", "time/train_s", "tokens/per_s", "policy/entropy", "policy/k3")
SMALL = (
    *("scenario=linear", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.steps=4"),
    *("run.eval_tasks=0", "observe.dashboard=off", "observe.tensorboard=false"),
    *("rollout.breaker=1000", "rollout.spare_groups=0"),
)
ILL_FROM = "train-00000[2-9]-*"
"""Rollouts that a fault plan meets: those of step 2 and later."""
CAMPAIGNS: dict[str, tuple[str, int, list[str], list[dict[str, Any]]]] = {
    "the grader fails": (
        *("dead_grader", 2, list[str]()),
        [{"where": "grade", "when": {"rollouts": ILL_FROM}, "what": "error"}],
    ),
    "sandboxes do not start": (
        *("abort_storm", 2, list[str]()),
        [
            {
                "where": "sandbox_boot",
                "when": {"rollouts": ILL_FROM, "attempts": 1},
                "what": "error",
            }
        ],
    ),
    "the engine is overloaded": (
        *("abort_storm", 2, list[str]()),
        [
            {
                "where": "turn",
                "when": {"rollouts": ILL_FROM, "probability": 0.6},
                "what": "status",
                "status": 429,
            }
        ],
    ),
    "temperature near 0": ("flat_groups", 1, ["sampling.temperature=0.01"], []),
    "two turns": ("truncation", 1, ["harness.max_turns=2"], []),
    "an update far too large": (
        *("truncation", 2, ["trainer.learning_rate=0.03"]),  # it babbles until its budget is gone
        [],
    ),
}
"""Name → expected alarm, first ill step, overrides, rules of a fault plan."""


def first_alarm(history: History, name: str) -> int | None:
    """Return the first step after which an alarm is raised."""
    for step in history.steps:
        if any(alarm.name == name for alarm in advise(history.until(step.step))):
            return step.step
    return None


def count_alarms(history: History) -> dict[str, int]:
    """Return the number of steps with each alarm."""
    found: dict[str, int] = {}
    for step in history.steps:
        for alarm in advise(history.until(step.step)):
            found[alarm.name] = found.get(alarm.name, 0) + 1
    return found


def draw_anew(history: History, seed: int) -> History:
    """Return the history with figures that vary by chance exchanged between neighbouring steps."""
    rng, steps = random.Random(seed), list(history.steps)
    for index in range(0, len(steps) - 1, 2):
        one, other = steps[index : index + 2]
        names = [name for name in EXCHANGED if rng.random() < 0.5]
        swapped = {name: other.metrics.get(name) for name in names}
        back = {name: one.metrics.get(name) for name in names}
        steps[index] = replace(one, metrics={**one.metrics, **swapped})
        steps[index + 1] = replace(other, metrics={**other.metrics, **back})
    return replace(history, steps=steps)


def is_large(name: str) -> bool:
    """Return whether a run has enough steps, and enough rollouts in each, to be made ill.

    Of 8 rollouts a step nobody can tell within three steps that a grader always says no.
    """
    return "small" not in name and "short" not in name


def infect_recorded(runs: dict[str, History]) -> Iterator[dict[str, Any]]:
    """Yield for each illness how many runs it was put into, and in how many it was named late."""
    for name, (expected, _) in ILLNESSES.items():
        delays: list[int | None] = []
        for history in runs.values():
            index = min(FIRST, len(history.steps) - WITHIN)
            at = first_alarm(infect(history, name, index), expected)
            delays.append(None if at is None else at - history.steps[index].step + 1)
        yield {"illness": name, "alarm": expected, "delays": delays}
    doubled = [first_alarm(double_tasks(history, 0.2), "duplicates") for history in runs.values()]
    yield {"illness": "tasks that are there twice", "alarm": "duplicates", "delays": doubled}


def make_ill(root: Path, name: str) -> dict[str, Any]:
    """Run a small campaign that is made ill; return after how many ill steps it is named."""
    expected, first, overrides, rules = CAMPAIGNS[name]
    folder = root / name.replace(" ", "-")
    folder.mkdir()
    plan = folder / "plan.yaml"
    plan.write_text(json.dumps({"seed": 0, "rules": rules}), "utf-8")  # JSON is YAML
    faults = ["faults=file", f"faults.path={plan}"] if rules else []
    began = time.monotonic()
    agentrl.run([*SMALL, *overrides, *faults, f"run.dir={folder / 'run'}"])
    with RunStore.open(folder / "run", read_only=True) as store:
        history = read_history(store)
    at = first_alarm(history, expected)
    others = count_alarms(history)
    return {
        "illness": f"{name} (campaign, {time.monotonic() - began:.0f} s)",
        "alarm": expected,
        "delays": [None if at is None else at - first + 1],
        "all": others,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the illnesses as a table on stderr."""
    table = Table(title="illnesses, named within three steps")
    for column in ("illness", "alarm", "runs", "named in time", "steps, most"):
        table.add_column(column)
    for row in rows:
        known = [delay for delay in row["delays"] if delay is not None]
        in_time = sum(delay <= WITHIN for delay in known)
        cells = (str(len(row["delays"])), str(in_time), str(max(known, default="never")))
        table.add_row(row["illness"], row["alarm"], *cells)
    Console(stderr=True, width=120).print(table)


def main() -> None:
    """Measure, print tables and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--campaigns", action="store_true", help="also run small campaigns")
    parser.add_argument("--only", nargs="*", help="of the campaigns, these")
    parser.add_argument("--redraws", type=int, default=20, help="of each recorded run")
    options = parser.parse_args()
    runs = healthy_runs()
    false = {name: found for name, run in runs.items() if (found := count_alarms(run))}
    redrawn = sum(
        bool(count_alarms(draw_anew(run, seed)))
        for run in runs.values()
        for seed in range(options.redraws)
    )
    rows = list(infect_recorded({name: run for name, run in runs.items() if is_large(name)}))
    if options.campaigns or options.only:
        with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as root:
            rows += [make_ill(Path(root), name) for name in options.only or CAMPAIGNS]
    show(rows)
    steps = sum(len(run.steps) for run in runs.values())
    Console(stderr=True).print(
        f"healthy: {len(runs)} runs, {steps} steps, alarms in {len(false)} runs {false or ''}; "
        f"drawn anew: alarms in {redrawn} of {len(runs) * options.redraws}"
    )
    print(json.dumps({"benchmark": "adviser", "false": false, "redrawn": redrawn, "rows": rows}))


if __name__ == "__main__":
    main()
