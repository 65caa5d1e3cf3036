"""SWE-bench's own tools read an evaluation's directory and agree with our report."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from conf.schema import Config
from conf.sections.task import SwebenchTaskConfig
from runners.campaigns.evaluation.benchmarks import BENCHMARKS
from runners.campaigns.evaluation.files import prediction_name
from runners.campaigns.evaluation.plan import rollout_id, select_tasks
from runners.campaigns.evaluation.report import EvaluationReport, OfficialCounts
from runners.campaigns.evaluation.results import Results
from runners.campaigns.evaluation.run import write_results
from runners.campaigns.evaluation.swebench_files import INSTANCES
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.rollouts.contract import verdict_to_dict
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks import builtin
from runners.tasks.contract import Task
from runners.tasks.grading import Grader, RolloutResult
from runners.tasks.grading.graders.task_grader import log_file
from runners.tasks.grading.grading import make_grader
from runners.tasks.patches.patch import decode_patch
from runners.tasks.repositories.task_repositories import TaskRepositories
from tests.fakes.docker_engine import docker_engine
from tests.fakes.records import CONFIG, a_rollout
from tests.runners.tasks.conftest import backend

__all__ = ["backend"]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("swebench") is None, reason="the extra swebench is not installed"
    ),
]

MODEL = "/models/org/policy"
NEEDS_NOTHING = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n"
WRONG = f"{NEEDS_NOTHING}@@ -0,0 +1 @@\n+not a fix\n"
BROKEN = "diff --git a/none.py b/none.py\n--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-x\n+y\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    file = builtin.build(tmp_path_factory.mktemp("set") / "made")
    words = (f"task.path={file}", f"model.path={MODEL}", "eval.attempts_per_task=2", "eval.tasks=7")
    return compose(["run.steps=0", "run.eval_tasks=0", "task=swebench", *words])


async def graded(grader: Grader, at: tuple[int, int], task: Task, diff: str) -> RolloutRecord:
    """Grade a diff as an evaluation does; return its record."""
    name = rollout_id(*at)
    result = RolloutResult.of_patch(decode_patch(diff, {}))
    verdict = await grader.grade(task, result, name=name, deadline_s=60)
    return a_rollout(
        name,
        task_id=task.id,
        patch=diff,
        solved=verdict.kind == "solved",
        verdict=verdict_to_dict(verdict),
        extra={},
    )


@pytest.fixture(scope="module")
def run_dir(
    backend: LocalBackend, config: Config, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Solved, unsolved, does not apply, empty, grading failed, failed before, not run."""
    directory = tmp_path_factory.mktemp("runs") / "20260101-eval-swebench"
    selection = select_tasks(BENCHMARKS["swebench"], config)
    tasks = [instance.task for instance in selection.instances]
    gold = [task.gold_patch for task in tasks]

    async def rollouts() -> list[RolloutRecord]:
        repositories = TaskRepositories(backend, directory.parent / "repositories")
        grader = make_grader(backend, config, repositories.ensure, directory)
        asked = [((0, 0), gold[0]), ((1, 0), WRONG), ((2, 0), BROKEN), ((3, 0), "")]
        asked.append(((1, 1), gold[1]))
        return await asyncio.gather(*(graded(grader, at, tasks[at[0]], diff) for at, diff in asked))

    def failed(place: int, code: OutcomeCode, stage: Stage) -> RolloutRecord:
        return a_rollout(
            rollout_id(place, 0),
            task_id=tasks[place].id,
            patch=WRONG,
            outcome=Outcome(code, stage),
            solved=None,
            reward=None,
            verdict=None,
            extra={},
        )

    with RunStore.create(directory, CONFIG) as store:
        for record in asyncio.run(rollouts()):
            store.put_rollout(record)
        for place, diff, line in (
            (1, WRONG, "ModuleNotFoundError: No module named 'x'"),
            (2, BROKEN, "curl: (6) Could not resolve host: example.com"),
        ):  # what their classification looks for
            log = log_file(directory, tasks[place], decode_patch(diff, {}))
            log.write_text(f"{log.read_text()}{line}\n")
        store.put_rollout(failed(4, OutcomeCode.GRADER_ERROR, Stage.GRADE))
        store.put_rollout(failed(5, OutcomeCode.INFRA_SANDBOX_LOST, Stage.HARNESS))
        results = Results(store, BENCHMARKS["swebench"], config, selection)
        write_results(results, config, store, 1.0)
    return directory


def report_of(run_dir: Path) -> EvaluationReport:
    return EvaluationReport.model_validate_json((run_dir / "report.json").read_text())


def official_fields(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name in OfficialCounts.model_fields}


def of_sample(run_dir: Path, sample: int) -> OfficialCounts:
    report = report_of(run_dir)
    return report if sample == 0 else report.further_samples[sample - 1]


@pytest.mark.parametrize("sample", [0, 1])
def test_the_package_s_report_of_our_directory_has_our_counts(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: int
) -> None:
    from swebench.harness.reporting import make_run_report
    from swebench.harness.utils import get_predictions_from_file, load_swebench_dataset

    monkeypatch.chdir(run_dir)
    found = get_predictions_from_file(prediction_name(sample), INSTANCES, "test")
    predictions = {prediction["instance_id"]: prediction for prediction in found}
    name = run_dir.name if not sample else f"{run_dir.name}-2"
    rows = load_swebench_dataset(INSTANCES)
    file = make_run_report(predictions, rows, name, report_dir=str(tmp_path))
    theirs = json.loads(file.read_text())
    assert theirs.keys() == OfficialCounts.model_fields.keys() | {"schema_version"}
    ours = of_sample(run_dir, sample).model_dump(mode="json")
    assert official_fields(ours) == official_fields(theirs)


def test_every_count_agrees_with_the_outcomes(run_dir: Path) -> None:
    report = report_of(run_dir)
    numbers = {n.removesuffix("_ids"): len(v) for n, v in report if n.endswith("_ids")}
    assert numbers == {
        **{"submitted": 5, "completed": 3, "resolved": 1, "unresolved": 2, "empty_patch": 1},
        **{"error": 1, "incomplete": 2, "infra_failure": 1, "ambiguous_failure": 1, "failed": 2},
    }
    assert report.total_instances == 7
    assert set(report.failure_reasons.values()) == {"missing_module", "network_unreachable"}


def test_the_package_grades_our_logs_again_and_agrees(run_dir: Path, tmp_path: Path) -> None:
    names = ("-d", INSTANCES, "-p", "predictions.jsonl", "--run_id", run_dir.name)
    options = ("--rewrite_reports", "true", "--report_dir", str(tmp_path), "--max_workers", "1")
    with docker_engine() as host:
        done = subprocess.run(
            [sys.executable, "-m", "swebench.harness.run_evaluation", *names, *options],
            cwd=run_dir,
            env={**os.environ, "DOCKER_HOST": host},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob(f"*.{run_dir.name}.json")
    ours = report_of(run_dir).model_dump(mode="json")
    assert official_fields(json.loads(file.read_text())) == official_fields(ours)


def test_an_instance_has_its_report_its_log_and_its_patch(run_dir: Path) -> None:
    report = report_of(run_dir)
    folder = run_dir / "logs/run_evaluation" / run_dir.name / MODEL.replace("/", "__")
    assert {path.name for path in folder.iterdir()} == {
        *report.resolved_ids, *report.unresolved_ids, *report.error_ids,
    }  # fmt: skip
    [solved] = report.resolved_ids
    assert {path.name for path in (folder / solved).iterdir()} == {
        "patch.diff", "report.json", "test_output.txt",
    }  # fmt: skip
    document = json.loads((folder / solved / "report.json").read_text())[solved]
    assert document["resolved"]
    assert document["tests_status"]["FAIL_TO_PASS"]["failure"] == []
    log = (folder / solved / "test_output.txt").read_text()
    assert ">>>>> Start Test Output" in log
    [failed] = report.error_ids
    assert [path.name for path in (folder / failed).iterdir()] == ["patch.diff"]


def test_the_built_in_rows_have_the_package_s_format(config: Config) -> None:
    from swebench.harness.utils import load_swebench_dataset, make_test_spec

    assert isinstance(config.task, SwebenchTaskConfig)
    assert config.task.path is not None
    rows = load_swebench_dataset(config.task.path)
    specs = [make_test_spec(dict(row)) for row in rows]
    assert len(specs) >= 12
    assert all(spec.FAIL_TO_PASS and spec.eval_script for spec in specs)
