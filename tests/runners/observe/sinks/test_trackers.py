"""W&B and MLflow get each step once, also when the run is resumed; their own libraries write."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from runners.observe.sinks import libraries
from runners.observe.sinks.libraries import find_sink_errors
from runners.observe.sinks.mlflow_tracker import name_metrics
from runners.observe.sinks.open_trackers import TrackerFeed, make_trackers
from runners.observe.sinks.tracker import (
    CLOSE_S,
    TRACKERS,
    Ending,
    EntryRefused,
    Sent,
    StepEntry,
    TrackedRun,
    TrackerThread,
    list_missing,
    read_sent,
)
from runners.observe.sinks.wandb_tracker import WandbTracker
from runners.records.store.run_store import RunStore

BLOCK, FULL, LAST = 1 << 15, 1, 4
"""Of LevelDB's format of logs."""
SETS = {"train/solve_rate": 0.5, "train/solve_rate/easy": 0.75}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "first-run"


@pytest.fixture
def store(run_dir: Path) -> Iterator[RunStore]:
    with RunStore.create(run_dir, compose([]).model_dump(mode="json")) as store:
        yield store


@dataclass
class Tracked:
    """A tracker that fails as it is told."""

    fails: int = 0
    """Tries that fail before one succeeds."""
    refused: int | None = None
    """A step that it never takes."""
    hangs: threading.Event | None = None
    """It answers nothing until this is set."""
    late: bool = False
    """It cannot say at its end that all has arrived."""
    keeps_at_once: bool = False
    got: list[tuple[str, int]] = field(default_factory=list)
    ended: list[Ending] = field(default_factory=list)

    def open(self, run_id: str | None) -> str:
        return run_id or "one"

    def log(self, entry: StepEntry) -> None:
        if self.hangs is not None:
            self.hangs.wait()
        if self.fails:
            self.fails -= 1
            raise ConnectionError("nobody listens")
        if entry.step == self.refused:
            raise EntryRefused("such a name")
        self.got.append((entry.part, entry.step))

    def close(self, ending: Ending) -> None:
        self.ended.append(ending)
        if self.late:
            raise TimeoutError("Timed out finishing run.")


def finish_step(store: RunStore, step: int, measured: float | None = None) -> None:
    store.begin_step(step, [])
    store.finish_step(step, {"loss/policy": step / 8, "policy/kl": None, **SETS})
    if measured is not None:
        store.finish_evaluation(step, {"solve_rate": measured, "pass@2": measured + 0.125})


async def execute(
    run_dir: Path, settings: list[str], steps: range, ending: Ending = Ending.FINISHED
) -> list[str]:
    """Track some steps as an execution of the run does; return what it was told."""
    config, told = compose(settings), list[str]()
    store = (
        RunStore.open(run_dir)
        if run_dir.exists()
        else RunStore.create(run_dir, config.model_dump(mode="json"))
    )
    with store:
        if steps.start == 1:
            store.finish_evaluation(0, {"solve_rate": 0.25, "pass@2": 0.375})
        feed = TrackerFeed(config, store, told.append)
        feed.wake()
        for step in steps:
            finish_step(store, step, 0.5 if step % 2 == 0 else None)
            feed.wake()
        await feed.close(ending)
        await asyncio.sleep(0)
    return told


def read_records(file: Path) -> Iterator[bytes]:
    """Yield the records of W&B's file: a log of LevelDB after a header of 7 bytes."""
    data, at, parts = file.read_bytes(), 7, list[bytes]()
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK  # no header fits in there
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts.clear()


def read_wandb_records(folder: Path, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield run and record of a kind in the files that W&B wrote, in the order of their starts."""
    from wandb.proto import wandb_internal_pb2

    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for text in read_records(file):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(text)
            if record.WhichOneof("record_type") == kind:
                yield file.stem.removeprefix("run-"), getattr(record, kind)


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    """Return the history rows in the files that W&B wrote."""
    rows = []
    for run, history in read_wandb_records(folder, "history"):
        items = {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in history.item
        }
        rows.append({"run": run, **items})
    return rows


@pytest.mark.integration
async def test_wandb_goes_on_with_the_same_run_and_has_each_step_once(run_dir: Path) -> None:
    pytest.importorskip("wandb")
    settings = ["observe.wandb.project=mine", "observe.wandb.mode=offline"]
    assert await execute(run_dir, settings, range(1, 4), Ending.STOPPED) == []
    assert await execute(run_dir, settings, range(4, 6)) == []
    rows = read_wandb(run_dir / "trackers")
    assert len({row["run"] for row in rows}) == 1
    assert [row["_step"] for row in rows] == [1, 2, 4, 5, 6, 8, 9, 10]
    assert [row["step"] for row in rows] == [0, 1, 2, 2, 3, 4, 4, 5]
    losses = [(row["step"], row["loss/policy"]) for row in rows if "loss/policy" in row]
    assert losses == [(step, step / 8) for step in range(1, 6)]
    rates = [(row["step"], row["eval/solve_rate"]) for row in rows if "eval/solve_rate" in row]
    assert rates == [(0, 0.25), (2, 0.5), (4, 0.5)]
    ends = read_wandb_records(run_dir / "trackers", "exit")
    assert [end.exit_code for _, end in ends] == [255, 0], "stopped, then finished"


def track_and_be_killed(run_dir: Path, settings: list[str]) -> None:
    """Hand 2 steps to W&B, then end as by ``kill -9``."""
    config = compose(settings)
    with RunStore.create(run_dir, config.model_dump(mode="json")) as store:
        for step in (1, 2):
            finish_step(store, step)
        [tracker] = make_trackers(config, store).values()

        class Killed(Tracked):
            def log(self, entry: StepEntry) -> None:
                tracker.log(entry)
                if entry.step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

            def open(self, run_id: str | None) -> str:
                return tracker.open(run_id)

        TrackerThread("wandb", Killed(), run_dir, print).close(Ending.FINISHED)


@pytest.mark.integration
async def test_wandb_gets_again_what_its_process_lost_with_a_run_that_was_killed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of W&B's process of this one
    settings = ["observe.wandb.project=mine", "observe.wandb.mode=offline"]
    killed = get_context("spawn").Process(target=track_and_be_killed, args=(run_dir, settings))
    killed.start()
    await asyncio.to_thread(killed.join)
    assert killed.exitcode == -signal.SIGKILL
    assert await execute(run_dir, settings, range(3, 4)) == []
    rows = read_wandb(run_dir / "trackers")
    assert len({row["run"] for row in rows}) == 1
    assert {row["step"] for row in rows} == {1, 2, 3}


def test_what_a_tracker_may_have_lost_at_its_end_is_not_noted_as_sent(store: RunStore) -> None:
    finish_step(store, 1)
    tracker, told = Tracked(late=True), list[str]()
    TrackerThread("wandb", tracker, store.run_dir, told.append).close(Ending.FINISHED)
    assert tracker.got == [("train", 1)]
    assert told == ["wandb fails, the run goes on: TimeoutError: Timed out finishing run."]
    assert read_sent(store.run_dir / TRACKERS / "wandb.json") == Sent("one")


def test_a_tracker_that_was_away_or_refuses_gets_the_rest_in_order(store: RunStore) -> None:
    for step in range(1, 5):
        finish_step(store, step)
    tracker, told = Tracked(refused=2, fails=1), list[str]()
    thread = TrackerThread("there", tracker, store.run_dir, told.append)
    thread.wake()
    while tracker.fails:
        threading.Event().wait(0.001)
    assert thread.close(Ending.STOPPED) == "there: 1 entries were not delivered"
    assert tracker.got == [("train", 1), ("train", 3), ("train", 4)]
    assert told == ["there fails, the run goes on: ConnectionError: nobody listens"]
    assert tracker.ended == [Ending.STOPPED]


def test_a_tracker_that_hangs_holds_up_nobody(store: RunStore) -> None:
    finish_step(store, 1)
    tracker = Tracked(hangs=threading.Event())
    thread = TrackerThread("there", tracker, store.run_dir, print)
    assert thread.close(Ending.FINISHED, deadline_s=0.05) == "there did not end within 0.05 s"
    assert tracker.hangs is not None
    tracker.hangs.set()
    assert thread.close(Ending.FINISHED) == ""


def test_an_evaluation_follows_the_step_of_its_policy(store: RunStore) -> None:
    store.finish_evaluation(0, {"solve_rate": 0.25})
    finish_step(store, 1, 0.5)
    entries = list_missing(store, Sent(""))
    assert [(each.part, each.step) for each in entries] == [("eval", 0), ("train", 1), ("eval", 1)]
    assert entries[0].values == {"eval/solve_rate": 0.25}
    assert entries[1].values == {"loss/policy": 0.125, **SETS}
    assert all(each.at > 1e9 for each in entries)
    assert list_missing(store, Sent("", train=1, eval=0)) == entries[2:]


def test_what_an_earlier_version_noted_is_read(tmp_path: Path) -> None:
    noted = {"run": "one", "train": 4, "eval": 2, "refused": ["train 2"]}
    (tmp_path / "mlflow.json").write_text(json.dumps(noted))
    assert read_sent(tmp_path / "mlflow.json") == Sent("one", 4, 2)


def test_wandb_is_told_to_raise_when_it_does_not_finish_in_time(run_dir: Path) -> None:
    pytest.importorskip("wandb")
    config = compose(["observe.wandb.project=mine", "observe.wandb.mode=offline"])
    run = TrackedRun("first-run", run_dir / TRACKERS, {})
    tracker = WandbTracker(config.observe.wandb, run)
    tracker.open(None)
    settings = tracker._run.settings
    tracker.close(Ending.FINISHED)
    assert (settings.finish_timeout, settings.finish_timeout_raises) == (CLOSE_S, True)


@pytest.fixture
def store_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


@pytest.mark.integration
async def test_mlflow_goes_on_with_the_same_run_and_has_each_step_once(
    run_dir: Path, store_of_files: str
) -> None:
    from mlflow.tracking import MlflowClient

    settings = [f"observe.mlflow.uri={store_of_files}", "observe.mlflow.experiment=mine"]
    assert await execute(run_dir, settings, range(1, 4), Ending.STOPPED) == []
    client = MlflowClient(tracking_uri=store_of_files)
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("KILLED", "first-run")
    assert await execute(run_dir, settings, range(4, 6)) == []
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["trainer.kind"] == "local"

    def history(name: str) -> list[tuple[int, float]]:
        points = client.get_metric_history(run.info.run_id, name)
        return [(point.step, point.value) for point in points]

    assert history("loss/policy") == [(step, step / 8) for step in range(1, 6)]
    assert history("train/solve_rate.easy") == [(step, 0.75) for step in range(1, 6)]
    assert history("eval/pass_2") == [(0, 0.375), (2, 0.625), (4, 0.625)]
    assert "policy/kl" not in run.data.metrics


async def test_mlflow_prints_nothing_where_results_go(
    run_dir: Path, store_of_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's client does at the end of a run, by its own variable."""
    from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT

    monkeypatch.setenv(MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.name, "")
    monkeypatch.delenv(MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.name)
    await execute(run_dir, [f"observe.mlflow.uri={store_of_files}"], range(1, 2))
    assert os.environ[MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.name] == "true"


async def test_a_tracker_that_is_away_is_named_once_and_gets_its_steps_after_a_resume(
    run_dir: Path, store_of_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    away = ["observe.mlflow.uri=http://127.0.0.1:9"]
    told = await execute(run_dir, away, range(1, 4))
    assert "mlflow fails, the run goes on: MlflowException" in told[0]
    assert told[1:] == [
        "mlflow: 5 entries were not delivered; a resumed run sends the steps that are missing"
    ]
    back = [f"observe.mlflow.uri={store_of_files}"]
    assert await execute(run_dir, back, range(4, 5)) == []
    client = MlflowClient(tracking_uri=store_of_files)
    [run] = client.search_runs([e.experiment_id for e in client.search_experiments()])
    history = client.get_metric_history(run.info.run_id, "loss/policy")
    assert [point.step for point in history] == [1, 2, 3, 4]


def test_names_that_mlflow_refuses_or_cannot_store_are_written_otherwise() -> None:
    values = {"eval/pass@2": 1.0, "a": 2.0, "a/b c": 3.0, "x/y": 4.0}
    assert list(name_metrics(values, values)) == ["eval/pass_2", "a", "a.b c", "x/y"]


def test_a_library_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    config = compose(
        [
            *("observe.wandb.project=p", "observe.mlflow.uri=http://m:1"),
            *("observe.otlp.url=http://o:1", "gateway.metrics_port=9400"),
        ]
    )
    found = list(map(str, find_sink_errors(config)))
    assert [text.split("'")[1] for text in found] == [
        *(
            "agentrl-campaigns[wandb]",
            "agentrl-campaigns[mlflow]",
            "agentrl-campaigns[otel]",
            "agentrl-campaigns[otel]",
        ),
        "agentrl-campaigns[prometheus]",
    ]
    assert list(find_sink_errors(compose([]))) == []


def test_a_store_that_cannot_be_used_and_an_account_that_is_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    config = compose(["observe.wandb.project=p", f"observe.mlflow.uri={tmp_path.as_uri()}"])
    account, store = map(str, find_sink_errors(config))
    assert "set WANDB_API_KEY" in account
    assert "maintenance mode" in store
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / "netrc").chmod(0o600)
    assert list(find_sink_errors(compose(["observe.wandb.project=p"]))) == []


@pytest.mark.parametrize("uri", ["127.0.0.1:5000", "tracking.internal:5000/mlflow"])
def test_a_tracking_server_without_its_scheme_is_no_folder(uri: str) -> None:
    with pytest.raises(ConfigError, match=f"must begin with http:// or https://.*: http://{uri}"):
        compose([f"observe.mlflow.uri={uri}"])


@pytest.mark.parametrize("uri", ["mlruns", "sqlite:///runs.db", "file:///a:1", "http://m:5000"])
def test_a_folder_a_database_and_a_server_are_stores(uri: str) -> None:
    assert compose([f"observe.mlflow.uri={uri}"]).observe.mlflow.uri == uri


@pytest.mark.parametrize("key", ["observe.mlflow.uri", "observe.otlp.url"])
def test_addresses_hold_no_secrets(key: str) -> None:
    with pytest.raises(ConfigError, match="must hold no user, password"):
        compose([f"{key}=http://user:word@host:1"])
