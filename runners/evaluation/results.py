"""From the rollouts in a store to the report and the predictions of an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from conf.sections.model import ModelConfig
from runners.evaluation.benchmarks import Benchmark
from runners.evaluation.plan import SPLIT, Instance, Selection, rollout_id
from runners.evaluation.report import (
    REPORT_VERSION,
    Breakdown,
    Faults,
    Interval,
    Official,
    PartResult,
    PassAt,
    Report,
    Rollouts,
    Spread,
    Usage,
)
from runners.evaluation.statistics import (
    bootstrap_interval,
    pass_at_k,
    spread,
    wilson_interval,
)
from runners.evaluation.swebench_files import Submission, causes, instances
from runners.store.json_text import dumps
from runners.store.run_store import RunStore
from runners.tasks.patch_record import decode_patch
from runners.trajectory.outcome import Stage
from runners.trajectory.record import RolloutRecord

NAME_LENGTH = 200
"""SWE-bench's tools make a directory's name of the model's, and that has at most 255 bytes."""
Column = Literal["solved", "unsolved", "error", "not_run"]


class OtherTasks(AgentrlError):
    """The benchmark has other tasks than when the evaluation began."""

    exit_code = ExitCode.DATA_REFUSED


def column(record: RolloutRecord | None) -> Column:
    """Return where a rollout counts; ``record`` is its attempt that counts, if one does."""
    if record is None:
        return "not_run"
    place = record.outcome.meaning.eval_column
    if place != "verdict":
        return place
    return "solved" if record.solved else "unsolved"


def finished(store: RunStore) -> dict[str, RolloutRecord]:
    """Return the graded rollouts, by id: what a resumed evaluation does not repeat."""
    return {
        record.rollout_id: record
        for record in store.each_rollout(split=SPLIT, counts=True)
        if column(record) in ("solved", "unsolved")
    }


@dataclass(frozen=True, slots=True)
class _Row:
    """A task and its rollouts."""

    instance: Instance
    records: tuple[RolloutRecord | None, ...]
    """Attempt 0, 1, …; None: not run."""

    @property
    def valid(self) -> list[RolloutRecord]:
        return [r for r in self.records if r and column(r) in ("solved", "unsolved")]

    @property
    def solved(self) -> int:
        return sum(record.solved is True for record in self.valid)


class Results:
    """The rollouts of an evaluation, as they stand in its store; raises OtherTasks."""

    def __init__(
        self,
        store: RunStore,
        benchmark: Benchmark,
        config: Config,
        selection: Selection,
    ) -> None:
        self._store = store
        self._benchmark = benchmark
        self._config = config
        self._set_aside = sorted(selection.set_aside)
        counting = {r.rollout_id: r for r in store.each_rollout(split=SPLIT, counts=True)}
        samples = range(config.eval.attempts_per_task)
        self._rows = [
            _Row(
                instance,
                tuple(_at(instance, sample, counting) for sample in samples),
            )
            for instance in selection.instances
        ]

    def report(self, wall_s: float) -> Report:
        """Sum them up."""
        first, *further = (
            self._official(sample) for sample in range(self._config.eval.attempts_per_task)
        )
        return Report(
            **first.model_dump(),
            schema_version=2,
            report_version=REPORT_VERSION,
            benchmark=self._benchmark.name,
            model_name_or_path=model_name(self._config.model),
            run=self._store.run_dir.resolve().name,
            attempts_per_task=self._config.eval.attempts_per_task,
            rollouts=self._rollouts(),
            pass_at=list(self._pass_at()),
            failed_ids=sorted(
                row.instance.task.id for row in self._rows if column(row.records[0]) == "error"
            ),
            tampered={
                record.rollout_id: list(record.extra["tampered"])
                for row in self._rows
                for record in row.valid
                if record.extra.get("tampered")
            },
            tasks_without_verdict=self.tasks_without_verdict(),
            set_aside=self._set_aside,
            breakdown=self._breakdown(),
            usage=self._usage(),
            faults=self._faults(),
            wall_s=round(wall_s, 1),
            further_samples=further,
        )

    def tasks_without_verdict(self) -> list[str]:
        """Return the ids of tasks of which no rollout is valid."""
        return sorted(row.instance.task.id for row in self._rows if not row.valid)

    def instances(self) -> str:
        """Return the tasks as rows of SWE-bench; empty for those of another family."""
        return instances(row.instance.task for row in self._rows)

    def submissions(self, sample: int) -> list[Submission]:
        """Return the patches of one rollout per task.

        A rollout that failed before its patch was captured has none: an empty patch would count as
        the policy's failure.
        """
        return [
            Submission(
                row.instance.task,
                decode_patch(record.patch, record.extra),
                None if column(record) == "error" else record.solved,
                str((record.verdict or {}).get("reason", "")),
            )
            for row in self._rows
            if (record := row.records[sample]) is not None and _submitted(record)
        ]

    def predictions(self, sample: int) -> str:
        """Return one rollout per task in the form that SWE-bench's tools read, a line each."""
        name = model_name(self._config.model)
        lines = [
            {
                "instance_id": submission.task.id,
                "model_name_or_path": name,
                "model_patch": submission.text,
            }
            for submission in self.submissions(sample)
        ]
        return "".join(f"{dumps(line)}\n" for line in lines)

    def _official(self, sample: int) -> Official:
        submissions = self.submissions(sample)
        graded = [s for s in submissions if s.text and s.solved is not None]
        why = causes(self._store.run_dir, submissions)
        found: dict[str, Iterable[str]] = {
            "submitted": (s.task.id for s in submissions),
            "completed": (s.task.id for s in graded),
            "resolved": (s.task.id for s in graded if s.solved),
            "unresolved": (s.task.id for s in graded if not s.solved),
            "infra_failure": (name for name, cause in why.items() if cause.environment),
            "ambiguous_failure": (name for name, cause in why.items() if not cause.environment),
            "empty_patch": (s.task.id for s in submissions if not s.text),
            "error": (s.task.id for s in submissions if s.text and s.solved is None),
        }
        ids = {name: sorted(tasks) for name, tasks in found.items()}
        everything = {row.instance.task.id for row in self._rows}
        return Official.model_validate(
            {
                "total_instances": len(everything),
                **{f"{name}_instances": len(tasks) for name, tasks in ids.items()},
                **{f"{name}_ids": tasks for name, tasks in ids.items()},
                "incomplete_ids": sorted(everything.difference(ids["submitted"])),
                "failure_reasons": {name: why[name].reason for name in sorted(why)},
            }
        )

    def _rollouts(self) -> Rollouts:
        records = [record for row in self._rows for record in row.records]
        columns = Counter(column(record) for record in records)
        by_code: dict[str, Counter[str]] = {"error": Counter(), "valid": Counter()}
        for record in records:
            if record is not None and column(record) != "not_run":
                kind = "error" if column(record) == "error" else "valid"
                by_code[kind][record.outcome.code] += 1
        return Rollouts(
            wanted=len(records),
            valid=columns["solved"] + columns["unsolved"],
            solved=columns["solved"],
            unsolved=columns["unsolved"],
            error=columns["error"],
            not_run=columns["not_run"],
            errors=_sorted(by_code["error"]),
            outcomes=_sorted(by_code["valid"]),
        )

    def _pass_at(self) -> Iterator[PassAt]:
        tallies = [(len(row.valid), row.solved) for row in self._rows]
        for k in range(1, self._config.eval.attempts_per_task + 1):
            values = [pass_at_k(valid, solved, k) for valid, solved in tallies if valid >= k]
            interval = bootstrap_interval(values)
            if interval is None:
                return
            wilson = None
            if k == 1:
                wilson = wilson_interval(sum(s for _, s in tallies), sum(v for v, _ in tallies))
            yield PassAt(
                k=k,
                value=sum(values) / len(values),
                tasks=len(values),
                bootstrap=_interval(interval),
                wilson=None if wilson is None else _interval(wilson),
            )

    def _breakdown(self) -> Breakdown:
        parts: dict[str, list[_Row]] = {}
        for row in self._rows:
            parts.setdefault(row.instance.task.kind, []).append(row)
        return Breakdown(
            by=self._benchmark.parts,
            parts={name: _part(rows) for name, rows in sorted(parts.items())},
        )

    def _usage(self) -> Usage:
        valid = [record for row in self._rows for record in row.valid]
        return Usage(
            turns=_spread(record.turns for record in valid),
            sampled_tokens=_spread(record.sampled_tokens for record in valid),
            seconds=_spread(r.timings["total"] for r in valid if "total" in r.timings),
        )

    def _faults(self) -> Faults:
        injected: Counter[str] = Counter()
        for event in self._store.events("fault"):
            injected[f"{event.data.get('where')}.{event.data.get('what')}"] += 1
        failed = Counter(
            record.outcome.code.value
            for record in self._store.each_rollout(split=SPLIT)
            if record.outcome.meaning.eval_column == "error"
        )
        return Faults(injected=_sorted(injected), failed_attempts=_sorted(failed))


def model_name(model: ModelConfig) -> str:
    """Return what predictions call the policy: where its weights are, else which one it is."""
    return str(model.path)[-NAME_LENGTH:] if model.path is not None else model.kind


def _at(
    instance: Instance, sample: int, counting: Mapping[str, RolloutRecord]
) -> RolloutRecord | None:
    """Return the rollout that counts. A file may have changed, or a dataset's revision moved: no
    verdict may count for the task that is in its task's place now.
    """
    record, task = counting.get(rollout_id(instance.place, sample)), instance.task
    if record is not None and record.task_id != task.id:
        raise OtherTasks(
            f"the benchmark has changed: {record.rollout_id} is a rollout at {record.task_id}, and "
            f"{task.id} is in its place now: set task.path to what it was (a hub's dataset: "
            "OWNER/NAME@COMMIT), or evaluate in a new run"
        )
    return record


def _submitted(record: RolloutRecord) -> bool:
    """Whether there is a patch to submit: its capture came before the grading."""
    graded = column(record) in ("solved", "unsolved")
    return graded or (column(record) == "error" and record.outcome.stage is Stage.GRADE)


def _part(rows: Sequence[_Row]) -> PartResult:
    rates = [row.solved / len(row.valid) for row in rows if row.valid]
    return PartResult(
        tasks=len(rows),
        valid=sum(len(row.valid) for row in rows),
        solved=sum(row.solved for row in rows),
        pass_at_1=sum(rates) / len(rates) if rates else None,
    )


def _spread(values: Iterable[float]) -> Spread | None:
    found = spread(values)
    return None if found is None else Spread(**found)


def _interval(ends: tuple[float, float]) -> Interval:
    return Interval(low=ends[0], high=ends[1])


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
