"""Compute the report and the predictions of an evaluation from the rollouts in its store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from conf.sections.engine import EndpointEngineConfig
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.campaigns.evaluation.plan import SPLIT, Instance, Selection, rollout_id
from runners.campaigns.evaluation.report import (
    REPORT_VERSION,
    Breakdown,
    EvaluationReport,
    FaultCounts,
    Interval,
    OfficialCounts,
    PartResult,
    PassAt,
    RolloutCounts,
    Spread,
    Usage,
)
from runners.campaigns.evaluation.swebench_files import (
    Submission,
    classify_failures,
    render_instances,
)
from runners.observe.figures import (
    bootstrap_interval,
    pass_at_k,
    summarize_values,
    task_interval,
    wilson_interval,
)
from runners.records.outcome import OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.records.text import dumps
from runners.sandboxes.contract import EGRESS
from runners.tasks.patches.patch import TOUCHED, decode_patch

NAME_LENGTH = 200
"""SWE-bench's tools use the model's name as a directory name, which has at most 255 bytes."""
ResultColumn = Literal["solved", "unsolved", "error", "not_run"]


class BenchmarkChanged(AgentrlError):
    """The benchmark has other tasks than at the start of the evaluation."""

    exit_code = ExitCode.DATA_REFUSED


def result_column(record: RolloutRecord | None) -> ResultColumn:
    """Return the column of the report in which a rollout counts.

    ``record`` is its final attempt; None if it has none.
    """
    if record is None:
        return "not_run"
    place = record.outcome.meaning.eval_column
    if place != "verdict":
        return place
    return "solved" if record.solved else "unsolved"


def load_graded(store: RunStore) -> dict[str, RolloutRecord]:
    """Return the graded rollouts by id; a resumed evaluation does not repeat them."""
    return {
        record.rollout_id: record
        for record in store.each_rollout(split=SPLIT, counts=True)
        if result_column(record) in ("solved", "unsolved")
    }


@dataclass(frozen=True, slots=True)
class _TaskRow:
    """A task and its rollouts."""

    instance: Instance
    records: tuple[RolloutRecord | None, ...]
    """Final attempt of rollout 0, 1, …; None: not run."""

    @property
    def valid(self) -> list[RolloutRecord]:
        return [r for r in self.records if r and result_column(r) in ("solved", "unsolved")]

    @property
    def solved(self) -> int:
        return sum(record.solved is True for record in self.valid)


class Results:
    """Rollouts of an evaluation, read from its store; raises BenchmarkChanged."""

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
        self._set_aside = list(selection.set_aside)
        counting = {r.rollout_id: r for r in store.each_rollout(split=SPLIT, counts=True)}
        samples = range(config.eval.attempts_per_task)
        self._rows = [
            _TaskRow(
                instance,
                tuple(_find_record(instance, sample, counting) for sample in samples),
            )
            for instance in selection.instances
        ]

    def report(self, wall_s: float) -> EvaluationReport:
        """Return the report; ``wall_s`` is the time that the evaluation has taken, in seconds."""
        first, *further = (
            self._official(sample) for sample in range(self._config.eval.attempts_per_task)
        )
        valid = [record for row in self._rows for record in row.valid]
        return EvaluationReport(
            **first.model_dump(),
            schema_version=2,
            report_version=REPORT_VERSION,
            benchmark=self._benchmark.name,
            model_name_or_path=model_name(self._config),
            run=self._store.run_dir.resolve().name,
            attempts_per_task=self._config.eval.attempts_per_task,
            rollouts=self._rollouts(),
            pass_at=list(self._pass_at()),
            failed_ids=sorted(
                row.instance.task.id
                for row in self._rows
                if result_column(row.records[0]) == "error"
            ),
            tampered={
                record.rollout_id: record.outcome.message
                for record in valid
                if record.outcome.code is OutcomeCode.POLICY_TAMPERED
            },
            unverified={
                record.rollout_id: record.verdict["unverified"]
                for record in valid
                if record.verdict and record.verdict.get("unverified")
            },
            signs={
                record.rollout_id: list(record.verdict["signs"])
                for record in valid
                if record.verdict and record.verdict.get("signs")
            },
            protected_touched={
                record.rollout_id: list(record.extra[TOUCHED])
                for record in valid
                if record.extra.get(TOUCHED)
            },
            egress={
                record.rollout_id: [
                    f"{'allowed' if each['allowed'] else 'denied'} {each['host']}:{each['port']}"
                    for each in record.extra[EGRESS]
                ]
                for record in valid
                if record.extra.get(EGRESS)
            },
            official_resolved={
                record.rollout_id: record.verdict["official"]
                for record in valid
                if record.verdict and record.verdict.get("official") is not None
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
        """Return the ids of the tasks without a valid rollout."""
        return sorted(row.instance.task.id for row in self._rows if not row.valid)

    def instances(self) -> str:
        """Return the tasks as rows in SWE-bench's format; empty for tasks of other families."""
        return render_instances(row.instance.task for row in self._rows)

    def submissions(self, sample: int) -> list[Submission]:
        """Return the patch of rollout number ``sample`` of every task that has one.

        A rollout that failed before its patch was captured is left out: an empty patch would count
        as a failure of the policy.
        """
        return [
            Submission(
                row.instance.task,
                decode_patch(record.patch, record.extra),
                None if result_column(record) == "error" else record.solved,
                str((record.verdict or {}).get("reason", "")),
            )
            for row in self._rows
            if (record := row.records[sample]) is not None and _has_patch(record)
        ]

    def predictions(self, sample: int) -> str:
        """Return rollout number ``sample`` of every task as SWE-bench's ``predictions.jsonl``."""
        name = model_name(self._config)
        lines = [
            {
                "instance_id": submission.task.id,
                "model_name_or_path": name,
                "model_patch": submission.text,
            }
            for submission in self.submissions(sample)
        ]
        return "".join(f"{dumps(line)}\n" for line in lines)

    def _official(self, sample: int) -> OfficialCounts:
        submissions = self.submissions(sample)
        graded = [s for s in submissions if s.text and s.solved is not None]
        why = classify_failures(self._store.run_dir, submissions)
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
        return OfficialCounts.model_validate(
            {
                "total_instances": len(everything),
                **{f"{name}_instances": len(tasks) for name, tasks in ids.items()},
                **{f"{name}_ids": tasks for name, tasks in ids.items()},
                "incomplete_ids": sorted(everything.difference(ids["submitted"])),
                "failure_reasons": {name: why[name].reason for name in sorted(why)},
            }
        )

    def _rollouts(self) -> RolloutCounts:
        records = [record for row in self._rows for record in row.records]
        columns = Counter(result_column(record) for record in records)
        by_code: dict[str, Counter[str]] = {"error": Counter(), "valid": Counter()}
        for record in records:
            if record is not None and result_column(record) != "not_run":
                kind = "error" if result_column(record) == "error" else "valid"
                by_code[kind][record.outcome.code] += 1
        return RolloutCounts(
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
            interval, resampled = task_interval(values), bootstrap_interval(values)
            if interval is None or resampled is None:
                return
            wilson = None
            if k == 1:
                wilson = wilson_interval(sum(s for _, s in tallies), sum(v for v, _ in tallies))
            yield PassAt(
                k=k,
                value=sum(values) / len(values),
                tasks=len(values),
                interval=_interval(interval),
                bootstrap=_interval(resampled),
                wilson=None if wilson is None else _interval(wilson),
            )

    def _breakdown(self) -> Breakdown:
        parts: dict[str, list[_TaskRow]] = {}
        for row in self._rows:
            parts.setdefault(row.instance.task.kind, []).append(row)
        return Breakdown(
            by=self._benchmark.parts,
            parts={name: _summarize_part(rows) for name, rows in sorted(parts.items())},
        )

    def _usage(self) -> Usage:
        valid = [record for row in self._rows for record in row.valid]
        return Usage(
            turns=_spread(record.turns for record in valid),
            sampled_tokens=_spread(record.sampled_tokens for record in valid),
            seconds=_spread(r.timings["total"] for r in valid if "total" in r.timings),
        )

    def _faults(self) -> FaultCounts:
        injected: Counter[str] = Counter()
        for event in self._store.events("fault"):
            injected[f"{event.data.get('where')}.{event.data.get('what')}"] += 1
        failed = Counter(
            record.outcome.code.value
            for record in self._store.each_rollout(split=SPLIT)
            if record.outcome.meaning.eval_column == "error"
        )
        return FaultCounts(injected=_sorted(injected), failed_attempts=_sorted(failed))


def model_name(config: Config) -> str:
    """Return the policy's name in predictions: the path of its weights (of a served model, of its
    tokenizer), an endpoint's name for it, else its kind.
    """
    model, engine = config.model, config.engine
    if isinstance(engine, EndpointEngineConfig):
        return engine.model[-NAME_LENGTH:]
    path = model.path or model.tokenizer
    return str(path)[-NAME_LENGTH:] if path is not None else model.kind


def _find_record(
    instance: Instance, sample: int, counting: Mapping[str, RolloutRecord]
) -> RolloutRecord | None:
    """Return the final record of a rollout; None if it has none.

    Raises BenchmarkChanged if it is a rollout at another task: the task file or the dataset's
    revision has changed, and a verdict must not count for the task that has that place now.
    """
    record, task = counting.get(rollout_id(instance.place, sample)), instance.task
    if record is not None and record.task_id != task.id:
        raise BenchmarkChanged(
            f"the benchmark has changed: {record.rollout_id} is a rollout at {record.task_id}, and "
            f"{task.id} is in its place now: set task.path to what it was (a hub's dataset: "
            "OWNER/NAME@COMMIT), or evaluate in a new run"
        )
    return record


def _has_patch(record: RolloutRecord) -> bool:
    """Return whether a rollout has a patch to submit: it was captured before the grading."""
    graded = result_column(record) in ("solved", "unsolved")
    return graded or (result_column(record) == "error" and record.outcome.stage is Stage.GRADE)


def _summarize_part(rows: Sequence[_TaskRow]) -> PartResult:
    rates = [row.solved / len(row.valid) for row in rows if row.valid]
    return PartResult(
        tasks=len(rows),
        valid=sum(len(row.valid) for row in rows),
        solved=sum(row.solved for row in rows),
        pass_at_1=sum(rates) / len(rates) if rates else None,
    )


def _spread(values: Iterable[float]) -> Spread | None:
    found = summarize_values(values)
    return None if found is None else Spread(**found)


def _interval(ends: tuple[float, float]) -> Interval:
    return Interval(low=ends[0], high=ends[1])


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
