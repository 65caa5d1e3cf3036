"""Evaluate a policy: run the rollouts of a benchmark and write the report.

Graded rollouts are not repeated: a resumed evaluation runs those that failed, were not run, or are
new.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from conf.sections.engine import EmbeddedEngineConfig, SglangEngineConfig
from conf.sections.model import EndpointModelConfig
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.campaigns.evaluation.execution import Execution, execute
from runners.campaigns.evaluation.files import REPORT, prediction_name, replace_file
from runners.campaigns.evaluation.plan import Selection, plan_rollouts, select_tasks
from runners.campaigns.evaluation.report import EvaluationReport
from runners.campaigns.evaluation.results import Results, load_graded, result_column
from runners.campaigns.evaluation.swebench_files import INSTANCES, write_logs
from runners.observe.live import format_duration
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.rollouts.contract import RolloutSpec
from runners.services.driver import Interrupted, RunEnd
from runners.services.services import start_services

_NOTE_S = 15.0
"""Longest time between two progress lines without a terminal; there is one per tenth, too."""


class TasksWithoutVerdict(AgentrlError):
    """Some tasks have no valid rollout: the benchmark is not measured completely."""

    exit_code = ExitCode.FAILURE_BUDGET


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Result of an evaluation."""

    report: EvaluationReport | None
    """None if it ended before its tasks were known."""
    end: RunEnd


def run_evaluation(
    benchmark: Benchmark, config: Config, run_dir: Path, *, resume: bool = False
) -> EvaluationResult:
    """Evaluate in ``run_dir``, or resume an evaluation there; see ``execute`` for the errors."""
    evaluation, end = execute(Evaluation, benchmark, config, run_dir, resume=resume)
    return EvaluationResult(evaluation.report, end)


class Evaluation:
    """One execution of an evaluation. Each object is used once."""

    def __init__(self, execution: Execution) -> None:
        self.report: EvaluationReport | None = None
        """The report; None before ``write``."""
        self._execution = execution
        self._selection: Selection | None = None
        self._noted = 0, time.monotonic()
        """At the last progress line: the tenths that were done, and the time."""

    async def work(self) -> None:
        """Run the rollouts that are not graded yet.

        Raises Interrupted, BenchmarkChanged, and TasksWithoutVerdict at the end.
        """
        execution = self._execution
        selection = await asyncio.to_thread(select_tasks, execution.benchmark, execution.config)
        done = load_graded(execution.store)
        wanted = plan_rollouts(selection.instances, execution.config)
        self._results(selection)  # raises BenchmarkChanged before anything runs
        self._selection = selection
        left = [spec for spec in wanted if spec.rollout_id not in done]
        execution.progress.columns.update(
            result_column(done[spec.rollout_id]) for spec in wanted if spec.rollout_id in done
        )
        if left and len(await self._run(left)) < len(left):
            raise Interrupted
        if missing := self._results(selection).tasks_without_verdict():
            named = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            raise TasksWithoutVerdict(
                f"{len(missing)} tasks have no valid rollout ({named}) and are not in the rates: "
                "fix the cause and continue with --resume"
            )

    def write(self) -> None:
        """Write the report and the predictions; raises StoreError."""
        if self._selection is not None:
            execution = self._execution
            self.report = write_results(
                self._results(self._selection),
                execution.config,
                execution.store,
                execution.driver.wall_s,
            )

    def _results(self, selection: Selection) -> Results:
        execution = self._execution
        return Results(execution.store, execution.benchmark, execution.config, selection)

    async def _run(self, specs: list[RolloutSpec]) -> list[RolloutRecord]:
        """Roll out; return the rollouts that were not cut off."""
        execution, config = self._execution, self._execution.config
        weights, tokenizer = self._policy()
        async with start_services(
            config,
            execution.store,
            weights=weights,
            tokenizer=tokenizer,
            version=0,
            watch=execution.progress.watch,
            on_service_exit=execution.driver.note_service_exit,
        ) as services:
            pool = services.make_pool(
                config.rollout, draining=execution.driver.draining, on_done=self._rollout_done
            )
            execution.progress.begin_phase("rollouts", len(specs))
            return await pool.run(specs)

    def _policy(self) -> tuple[Path | None, Path | None]:
        """Return weights and tokenizer; None as weights if a running engine has them already and
        keeps them, None as tokenizer if it takes texts.
        """
        config = self._execution.config
        model = config.model
        if isinstance(model, EndpointModelConfig):
            return None, None
        served = isinstance(config.engine, SglangEngineConfig) and not config.eval.update_weights
        if isinstance(config.engine, EmbeddedEngineConfig) or model.tokenizer is None:
            policy = self._execution.driver.policy()
            return None if served else policy.weights, policy.tokenizer
        return None if served else model.path, model.tokenizer

    def _rollout_done(self, record: RolloutRecord) -> None:
        progress = self._execution.progress
        progress.add_rollout(record.outcome.code, record.sampled_tokens)
        progress.columns[result_column(record)] += 1
        now, tenths = time.monotonic(), progress.batch_done * 10 // progress.batch_size
        if tenths > self._noted[0] or now - self._noted[1] > _NOTE_S:
            self._noted = tenths, now
            counts = "  ".join(
                f"{n} {progress.columns[n]}" for n in ("solved", "unsolved", "error")
            )
            progress.add_note(
                f"{progress.batch_done}/{progress.batch_size} rollouts  {counts}  "
                f"left {format_duration(progress.eta_s())}"
            )


def write_results(
    results: Results, config: Config, store: RunStore, wall_s: float
) -> EvaluationReport:
    """Write ``report.json`` and the files that SWE-bench's tools read; raises StoreError."""
    report = results.report(wall_s)
    if rows := results.instances():
        replace_file(store.run_dir / INSTANCES, rows)
    for sample in range(config.eval.attempts_per_task):
        replace_file(store.run_dir / prediction_name(sample), results.predictions(sample))
        write_logs(store.run_dir, sample, report.model_name_or_path, results.submissions(sample))
    replace_file(store.run_dir / REPORT, report.model_dump_json(indent=2) + "\n")
    return report


def rewrite_results(store: RunStore, benchmark: Benchmark, config: Config) -> EvaluationReport:
    """Write the results again, after verdicts in the store have changed; raises StoreError."""
    results = Results(store, benchmark, config, select_tasks(benchmark, config))
    return write_results(results, config, store, store.state().spent_s)
