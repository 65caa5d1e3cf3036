"""A tracked campaign: stopped at the tracker when its user stops it, finished at its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from conf.errors import ExitCode
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration


def test_a_run_that_is_stopped_is_killed_in_mlflow_and_finished_after_its_resume(
    miniature: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()

    def read_status() -> str:
        client = MlflowClient(tracking_uri=uri)
        [run] = client.search_runs([e.experiment_id for e in client.search_experiments()])
        return str(run.info.status)

    driver = miniature.begin(f"observe.mlflow.uri={uri}")
    miniature.wait_until(lambda store: bool(store.finished_steps()), driver)
    driver.send_signal(signal.SIGINT)
    miniature.finish(driver, code=ExitCode.INTERRUPTED)
    assert read_status() == "KILLED"
    miniature.finish(miniature.resume())
    assert read_status() == "FINISHED"
