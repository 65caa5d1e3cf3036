"""Reads a run as one JSON document: what its page draws, and the terminal's comparison reads.

Sums are over all attempts; of single ones there are a few, without their long texts, so that the
document does not grow with the run's rollouts.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from conf.compose import changed_keys
from runners.observe.adviser.adviser import ALARMS
from runners.observe.figures.cost import Cost, read_cost
from runners.observe.figures.passes import estimate_passes
from runners.observe.figures.statistics import wilson_interval
from runners.observe.figures.swimlane import StepSpans, read_step
from runners.observe.figures.task_rates import TaskRate, read_examples, read_task_rates
from runners.observe.live.result import find_interval, metrics_rows
from runners.observe.live.status import TASK_CHECK, Status, read_store_status
from runners.observe.report.against import Against
from runners.observe.report.sums import Sums, Totals
from runners.records.outcome import MEANING
from runners.records.routing import RoutingError
from runners.records.store import SAMPLED_TOKENS, RunStore
from runners.records.text import make_printable, shorten

TASKS, EVENTS = 100, 100
"""The most entries of a list in the document; the number of all of them stands beside it."""
_TEXT = 2_000
"""Characters of an event, which may quote what a policy wrote."""
_DRAWN = (
    "train/",
    "reward/",
    "eval/",
    "cheating/",
    "tokens/",
    "time/",
    "policy/",
    "r3/",
    "fanout/",
)
"""Beginnings of the metrics that the page draws."""
_BINS = ("never", "up to ¼", "up to ½", "up to ¾", "below 1", "always")
"""Solve rates: 0, then quarters with their upper end, the last without it, 1."""


@dataclass(frozen=True, slots=True)
class SolveRate:
    """A solve rate with its 95 % interval."""

    name: str
    """"step 20", "pass@1"."""
    step: int
    value: float
    low: float
    high: float
    of: int
    """Rollouts, or tasks, it is the mean of."""


@dataclass(frozen=True, slots=True)
class BranchTotals:
    """The turns of one kind of branch, over all counting rollouts."""

    kind: str
    threads: int
    turns: int
    sampled: int


@dataclass(frozen=True, slots=True)
class BreakTotals:
    """Chains that could not be continued, for one reason."""

    kind: str
    count: int
    example: str
    session_id: str


@dataclass(frozen=True, slots=True)
class EventTotals:
    """Events of one kind."""

    kind: str
    count: int
    last: str
    """Alarms of the newest advice."""


@dataclass(frozen=True, slots=True)
class RaisedAlarm:
    """An illness that the adviser found."""

    name: str
    steps: list[int]
    """After which it was found."""
    now: bool
    """True if after the last one, too."""
    evidence: str
    """Of the last time; likewise ``fix``."""
    fix: str


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task, over all steps that worked on it, or all evaluations that measured it."""

    task: str
    counts: tuple[tuple[int, int, int], ...]
    """(step, graded, solved) of each."""
    example: str | None
    """A rollout of it, one that does not solve it if there is one."""


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """The tasks of a split, the least solved ones by name."""

    tried: int
    bins: list[tuple[str, int, int]]
    """Name of a range of solve rates, the tasks in it over all steps, and in their last step."""
    several: bool
    """True if a task was tried in several steps."""
    shown: list[TaskLine]


@dataclass(frozen=True, slots=True)
class CheckedTasks:
    """The tasks of ``agentrl tasks check``, as it wrote them (``calibration.json``)."""

    times: int
    """Gradings of each patch."""
    tasks: int
    fit: int
    attacks: list[tuple[str, str, int, int]]
    """Name, sentence, tasks that it fits, tasks that pay it."""
    shown: list[tuple[str, str, str, list[tuple[str, str]]]]
    """Id, state, reason, and the verdicts on each patch in words; those that are not fit first."""


@dataclass(frozen=True, slots=True)
class RunDocument:
    """A run as its page and its comparison with others need it."""

    status: Status
    wall_s: float
    written_at: float
    """Unix seconds; of a run that is over: its last write."""
    config: dict[str, Any]
    changes: dict[str, Any]
    """Keys whose values are not the defaults."""
    steps: list[dict[str, Any]]
    """Metrics of each finished step that are drawn, ``step`` among them."""
    rates: list[SolveRate]
    """Held-out solve rates of a campaign; pass@1, pass@2, … of an evaluation."""
    intervals: list[tuple[int, float, float]]
    """(step, low, high) of the training solve rate."""
    sums: Totals
    alarms: list[RaisedAlarm]
    branches: list[BranchTotals]
    breaks: list[BreakTotals]
    events: list[EventTotals]
    routing_alarms: list[tuple[str, str]]
    """The rollout, or the step, and what is wrong with its routing."""
    cost: Cost
    train_tasks: TaskTotals
    held_out_tasks: TaskTotals
    lanes: list[tuple[str, StepSpans]]
    """Title and attempts of the newest, the slowest and the first step, or of an evaluation."""
    against: Against | None = None
    checked: CheckedTasks | None = None
    """Of a check of tasks."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document as JSON."""
        parts = list(map(str, self.status.partly_solved))
        leaks = [{"kind": leak.kind, "name": leak.name} for leak in self.status.leaks]
        return asdict(self) | {
            "status": self.status.to_dict() | {"parts": parts, "leaks": leaks},
            "cost": self.cost.to_dict(),
            "rewarded": [kind for kind, meaning in MEANING.items() if meaning.reward_counts],
        }


def read_document(store: RunStore, against: Against | None = None) -> RunDocument:
    """Read a run, which may be running; raises StoreError."""
    state, config, status = store.state(), store.config(), read_store_status(store)
    sums = Sums()
    for record in store.each_rollout():
        sums.add(record)
    rows = metrics_rows(store)
    return RunDocument(
        status=status,
        wall_s=state.spent_s,
        # of a run that is over: when it ended, so that a page of it is the same at any time
        written_at=time.time() if state.driven else status.updated_at,
        config=config,
        changes=changed_keys(config),
        steps=[
            {name: row[name] for name in row if name == "step" or name.startswith(_DRAWN)}
            for row in rows
        ],
        rates=list(_passes(sums, config) if status.benchmark else _held_out(store)),
        intervals=list(_solve_rate_intervals(rows, sums)),
        sums=sums.total(),
        alarms=_alarms(rows),
        branches=_branches(store),
        breaks=_breaks(store),
        events=_events(store),
        routing_alarms=_routing_alarms(store, status),
        cost=read_cost(store, config, state.spent_s),
        train_tasks=_tasks(store, "train"),
        held_out_tasks=_tasks(store, "eval"),
        lanes=list(_lanes(store, sums, rows)),
        against=against,
        checked=_read_checked(store) if status.benchmark == TASK_CHECK else None,
    )


def _read_checked(store: RunStore) -> CheckedTasks | None:
    try:
        found = json.loads((store.run_dir / "calibration.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None  # it was stopped before its tasks were known
    aside, lost = found["set_aside"], found["not_graded"]
    states = {**dict.fromkeys(aside, "set aside"), **dict.fromkeys(lost, "not graded")}
    names = [*states, *(name for name in found["rows"] if name not in states)]
    return CheckedTasks(
        found["times"],
        found["tasks"],
        found["fit"],
        [(name, *each.values()) for name, each in found["attacks"].items()],
        [
            (
                name,
                states.get(name, "fit"),
                _cut({**aside, **lost}.get(name, "")),
                [
                    (patch, ", ".join(f"{kind} {number}" for kind, number in verdicts.items()))
                    for patch, verdicts in found["rows"][name].items()
                ],
            )
            for name in names[:TASKS]
        ],
    )


def _solve_rate_intervals(
    rows: list[dict[str, Any]], sums: Sums
) -> Iterator[tuple[int, float, float]]:
    """Yield Wilson's interval of each finished step's training solve rate."""
    for step in (row["step"] for row in rows if row["step"] in sums.ends):
        ends = sums.ends[step]
        interval = wilson_interval(ends["solved"], ends["solved"] + ends["unsolved"])
        if interval is not None:
            yield step, *interval


def _alarms(rows: list[dict[str, Any]]) -> list[RaisedAlarm]:
    """Return every illness that the run had, those that it has now first."""
    raised: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    for row in rows:
        for alarm in row[ALARMS]:
            raised.setdefault(alarm["name"], []).append((row["step"], alarm))
    found = [
        RaisedAlarm(
            name,
            [step for step, _ in times],
            times[-1][0] == rows[-1]["step"],
            times[-1][1]["evidence"],
            times[-1][1]["fix"],
        )
        for name, times in raised.items()
    ]
    return sorted(found, key=lambda alarm: (not alarm.now, alarm.steps[0]))


def _events(store: RunStore) -> list[EventTotals]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for event in store.events():
        kinds.setdefault(event.kind, []).append(event.data)
    return [
        EventTotals(
            make_printable(kind),
            len(data),
            _cut(", ".join(f"{key} {value}" for key, value in data[-1].items())),
        )
        for kind, data in sorted(kinds.items())[:EVENTS]
    ]


def _routing_alarms(store: RunStore, status: Status) -> list[tuple[str, str]]:
    """Return the findings of the self-check of routing replay, which name layer and sample."""
    found = []
    for event in store.events():
        reason = str(event.data.get("reason"))
        if event.kind == "routing_fault":
            found.append((f"step {event.data.get('step')}", reason))
        elif event.kind == "routing_refused" or (
            event.kind == "unbuilt" and reason.startswith("RoutingError")
        ):
            found.append((str(event.data.get("rollout_id")), reason))
    # other exit codes concern services: a router that is gone says nothing about routing
    if status.exit_code == RoutingError.exit_code and "rout" in status.message:
        found.append(("the end of the run", status.message))
    return [(name, _cut(reason)) for name, reason in found[-EVENTS:]]


def _tasks(store: RunStore, split: str) -> TaskTotals:
    rates, examples = read_task_rates(store, split), read_examples(store, split)
    first = Counter(find_bin(each.rate) for each in rates)
    last = Counter(find_bin(each.last_rate) for each in rates)
    return TaskTotals(
        len(rates),
        [(name, first[name], last[name]) for name in _BINS],
        any(each.steps > 1 for each in rates),
        [_task_line(each, examples) for each in rates[:TASKS]],
    )


def _task_line(each: TaskRate, examples: Mapping[str, str]) -> TaskLine:
    return TaskLine(each.task_id, each.counts, examples.get(each.task_id))


def find_bin(rate: float) -> str:
    """Return the name of a solve rate's bin."""
    return _BINS[-1] if rate >= 1 else _BINS[ceil(rate * 4)]


def _lanes(
    store: RunStore, sums: Sums, rows: list[dict[str, Any]]
) -> Iterator[tuple[str, StepSpans]]:
    steps = sorted(sums.ends)
    if not steps:
        ((step,),) = store.query("SELECT max(step) FROM rollout WHERE split = 'eval'")
        if step is not None:
            yield "The evaluation", read_step(store, "eval", step)
        return
    took = {row["step"]: row["time/step_s"] for row in rows if "time/step_s" in row}
    chosen = {steps[-1]: f"Step {steps[-1]}, the newest"}
    if took:
        slowest = max(took, key=lambda step: took[step])
        chosen.setdefault(slowest, f"Step {slowest}, the slowest ({took[slowest]:.1f} s)")
    chosen.setdefault(steps[0], f"Step {steps[0]}, the first")
    for step, title in chosen.items():
        yield title, read_step(store, "train", step)


def _cut(text: str) -> str:
    return make_printable(shorten(text, _TEXT))


def _held_out(store: RunStore) -> Iterator[SolveRate]:
    for row in store.evaluations():
        rate, of = row.result.get("solve_rate"), row.result.get("graded", row.result.get("tasks"))
        if rate is not None:
            low, high = find_interval(store, row) or (rate, rate)
            yield SolveRate(f"step {row.step}", row.step, rate, low, high, of or 0)


def _passes(sums: Sums, config: dict[str, Any]) -> Iterator[SolveRate]:
    """Yield pass@k over the tasks that an evaluation has graded so far."""
    attempts = int(config.get("eval", {}).get("attempts_per_task", 1))
    for each in estimate_passes(sums.tasks.values(), attempts):
        yield SolveRate(f"pass@{each.k}", each.k, each.value, *each.interval, each.tasks)


def _branches(store: RunStore) -> list[BranchTotals]:
    rows = store.query(
        f"""
        SELECT branch, count(DISTINCT session_id || ' ' || thread), count(*), sum({SAMPLED_TOKENS})
        FROM turn WHERE session_id IN (SELECT session_id FROM rollout WHERE counts)
        GROUP BY branch ORDER BY 4 DESC
        """
    )
    return [BranchTotals(*row) for row in rows]


def _breaks(store: RunStore) -> list[BreakTotals]:
    rows = store.query(
        """
        SELECT break_reason, count(*), min(session_id) FROM turn
        WHERE break_reason IS NOT NULL
        AND session_id IN (SELECT session_id FROM rollout WHERE counts)
        GROUP BY break_reason ORDER BY 2 DESC
        """
    )
    found: dict[str, BreakTotals] = {}
    for reason, number, session in rows:
        kind = reason.partition(":")[0]
        old = found.get(kind, BreakTotals(kind, 0, reason, session))
        found[kind] = replace(old, count=old.count + number)
    return list(found.values())
