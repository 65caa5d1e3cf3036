"""Track a run with MLflow, by its client alone: no global state, no automatic logging."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conf.keys import flatten
from conf.sections.observe import MlflowConfig
from runners.observe.sinks.tracker import Ending, EntryRefused, StepEntry, TrackedRun

METRICS, PARAMS = 1000, 100
"""MLflow's limits for one request."""
PARAM_CHARS = 6000
_FOREIGN = re.compile(r"[^/\w.\- :]")
"""Characters that MLflow takes in no name."""
STATUS = {Ending.FINISHED: "FINISHED", Ending.STOPPED: "KILLED", Ending.FAILED: "FAILED"}
REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


class MlflowTracker:
    """Writes to one run of MLflow."""

    keeps_at_once = True

    def __init__(self, config: MlflowConfig, run: TrackedRun) -> None:
        self._config = config
        self._tracked = run
        self._client: Any = None
        self._id = ""

    def open(self, run_id: str | None) -> str:
        """Begin a run with the configuration as its parameters, or open one again."""
        # Its client prints a link to each run that ends, where `--json` has one document.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        self._client = make_client(self._config)
        if run_id is not None:
            self._id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        made = self._client.create_run(
            self._find_experiment(), run_name=self._config.name or self._tracked.name
        )
        self._id = made.info.run_id
        self._log_params()
        return self._id

    def log(self, entry: StepEntry) -> None:
        """Send the figures of an entry. Their time is the step's: a store with a database keeps a
        point that comes twice once.
        """
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        at = round(entry.at * 1000)
        named = name_metrics(entry.values, entry.names)
        points = [Metric(name, value, at, entry.step) for name, value in named.items()]
        try:
            for some in _batched(points, METRICS):
                self._client.log_batch(self._id, metrics=some)
        except MlflowException as error:
            if error.error_code in REFUSED:
                raise EntryRefused(f"step {entry.step}: {error}") from error
            raise

    def close(self, ending: Ending) -> None:
        """Mark the run as finished, killed or failed."""
        self._client.set_terminated(self._id, STATUS[ending])

    def _find_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self._config.experiment
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another run of a sweep has made it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _log_params(self) -> None:
        from mlflow.entities import Param

        params = [
            Param(key, str(value)[:PARAM_CHARS]) for key, value in flatten(self._tracked.config)
        ]
        for some in _batched(params, PARAMS):
            self._client.log_batch(self._id, params=some)


def make_client(config: MlflowConfig) -> Any:
    """Return a client of the store; connects to nothing. Raises MlflowException if this
    installation cannot use such a store.
    """
    from mlflow.tracking import MlflowClient

    # The registry of models is not used; the client of mlflow-skinny has none for a database.
    return MlflowClient(tracking_uri=config.uri, registry_uri="file:///nonexistent")


def name_metrics(values: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return figures by names that MLflow takes: ``eval/pass@2`` is ``eval/pass_2``, and
    ``train/solve_rate/NAME`` is ``train/solve_rate.NAME``, since a store of files has a folder or a
    figure of one name.
    """
    known = frozenset(names)
    return {_rename(name, known): value for name, value in values.items()}


def _rename(name: str, known: frozenset[str]) -> str:
    folder, _, last = name.rpartition("/")
    joined = f"{folder}.{last}" if folder in known else name
    return _FOREIGN.sub("_", joined)


def _batched(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
